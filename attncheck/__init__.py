"""attncheck proves that an LLM-training environment's attention stack works before anyone pays for the job."""

__version__ = "0.1.0"
