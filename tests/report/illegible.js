// What is hard to read: short words that break within, cells of one word a line, tables of texts that must be scrolled,
// badges over text, headings without content, columns without a title, colour without a word, axes without numbers.
const found = new Set(), texts = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, parent = node.parentElement;
  if (node.data.trim() && parent.checkVisibility() && !parent.closest('.unseen, .skip, script, textarea, svg, option'))
    texts.push(node);
}
const boxes = (node, start, end) => {
  const range = document.createRange();
  range.setStart(node, start);
  range.setEnd(node, end);
  return Array.from(range.getClientRects()).filter(box => box.width > 0);
};
for (const node of texts) {
  if (!node.parentElement.closest('th, td, h1, h3, h4')) continue;
  for (const word of node.data.matchAll(/[A-Za-z]{2,18}/g)) {
    const tops = boxes(node, word.index, word.index + word[0].length).map(box => Math.round(box.top));
    if (new Set(tops).size > 1) found.add('broken: ' + word[0]);
  }
}
for (const cell of document.querySelectorAll('th, td, caption')) {
  const words = cell.innerText.trim().split(/\s+/);
  if (!cell.checkVisibility() || cell.closest('.unseen') || words.length < 4) continue;
  const range = document.createRange();
  range.selectNodeContents(cell);
  const lines = new Set(Array.from(range.getClientRects()).map(box => Math.round(box.top / 4))).size;
  if (lines > 3 && words.length / lines < 1.6) found.add('one word a line: ' + cell.innerText.slice(0, 60));
}
for (const table of document.querySelectorAll('.scroll:has(.items)'))
  if (table.scrollWidth > table.clientWidth + 1) found.add('cut: ' + table.getAttribute('aria-label'));
for (const badge of document.querySelectorAll('.badge')) {
  const own = badge.getBoundingClientRect();
  for (const node of badge.closest('tr, h3, p, article')?.querySelectorAll('*') ?? [])
    for (const part of node.childNodes)
      if (part.nodeType === 3 && part.data.trim() && !badge.contains(part) && boxes(part, 0, part.data.length).some(
        box => box.left < own.right - 1 && box.right > own.left + 1 && box.top < own.bottom - 3 && box.bottom > own.top + 3
      )) found.add('under a badge: ' + part.data.slice(0, 60));
}
for (const heading of document.querySelectorAll('h2, h3, h4')) {
  const next = heading.nextElementSibling;
  if (!next || /^H[1-4]$/.test(next.tagName) && next.tagName <= heading.tagName) found.add('empty: ' + heading.innerText);
}
for (const head of document.querySelectorAll('thead th')) if (!head.textContent.trim()) found.add('a column without a title');
for (const cell of document.querySelectorAll('td.ok, td.warn, td.bad, .heat, .badge'))
  if (!cell.textContent.trim()) found.add('colour alone: ' + cell.className);
for (const curve of document.querySelectorAll('.curve')) if (!curve.querySelector('text')) found.add('axes without numbers');
return Array.from(found);
