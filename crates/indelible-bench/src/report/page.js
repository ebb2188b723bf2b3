const root = document.documentElement;
const say = (button, text) => {
  const before = button.textContent;
  button.textContent = text;
  setTimeout(() => (button.textContent = before), 1200);
};
const copy = async (button, text) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.body.appendChild(document.createElement('textarea'));
    area.value = text;
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  say(button, 'copied');
};
const cells = (row, get) =>
  [...row.cells].flatMap((cell) => {
    const text = get(cell).replace(/\s+/g, ' ').trim();
    return Array(cell.colSpan).fill(text);
  });
const rows = (table, get) => {
  const heads = [...table.tHead.rows].map((row) => cells(row, get));
  const head = heads[0].map((_, at) => heads.map((h) => h[at]).filter(Boolean).join(', '));
  return [head, ...[...table.tBodies[0].rows].map((row) => cells(row, get))];
};
const figure = (cell) => (cell.querySelector('span') ?? cell).textContent;
const whole = (cell) => cell.textContent;
const markdown = (table) => {
  const [head, ...body] = rows(table, whole);
  const line = (row) => `| ${row.map((text) => text.replaceAll('|', '\\|')).join(' | ')} |`;
  const rule = head.map((_, at) => (at ? '---:' : '---'));
  return [line(head), line(rule), ...body.map(line)].join('\n');
};
document.addEventListener('click', ({ target }) => {
  if (target.dataset.copy === 'pre') copy(target, target.parentNode.querySelector('pre').textContent);
  const table = target.closest('.table')?.querySelector('table');
  if (target.dataset.copy === 'tsv') copy(target, rows(table, figure).map((row) => row.join('\t')).join('\n'));
  if (target.dataset.copy === 'md') copy(target, markdown(table));
  if (target.id === 'theme') {
    const night = root.dataset.theme ? root.dataset.theme === 'night' : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = night ? 'day' : 'night';
  }
});
if (/^#(day|night)$/.test(location.hash)) root.dataset.theme = location.hash.slice(1);
// A line under the pointer is alone for a moment.
const mine = (element) => /\b[fs]-(k\d+)\b/.exec(element.getAttribute?.('class') ?? '')?.[1];
document.addEventListener('pointerover', ({ target }) => {
  document.querySelectorAll('svg .dim').forEach((element) => element.classList.remove('dim'));
  const one = mine(target);
  if (!one) return;
  const all = target.closest('svg').querySelectorAll('[class*="-k"]');
  all.forEach((element) => element.classList.toggle('dim', mine(element) !== one));
});
