"""The training arguments that transformers renamed; every framework on its Trainer takes them.

Source: training_args.py in the wheels of transformers 4.28.1 to 5.23.0; 4.57.6 names the successors in its help.
"""

from collections.abc import Mapping

# Field -> its new names, "name" or "name=value" if it becomes one value of another field; (): removed.
RENAMES: Mapping[str, tuple[str, ...]] = {
    "evaluation_strategy": ("eval_strategy",),  # 4.46.3; removed in 4.51
    "no_cuda": ("use_cpu",),  # 4.57.6
    "group_by_length": ("train_sampling_strategy=group_by_length",),  # 5.1.0, 5.2.0
    "warmup_ratio": ("warmup_steps",),  # a value below 1 is a ratio since 5.0.0; removed in 5.15
    "per_gpu_train_batch_size": ("per_device_train_batch_size",),
    "per_gpu_eval_batch_size": ("per_device_eval_batch_size",),
    "push_to_hub_token": ("hub_token",),
    "push_to_hub_model_id": ("hub_model_id",),
    "torchdynamo": ("torch_compile_backend",),  # 4.57.6:1819
    "adafactor": ("optim=adafactor",),  # 4.57.6:1779
    "include_inputs_for_metrics": ("include_for_metrics=inputs",),  # 4.57.6:2160
    "half_precision_backend": (),
    "fp16_backend": (),
}
