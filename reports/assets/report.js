// Sorts, filters and saves. The page says everything without it.
'use strict';
(() => {
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v !== undefined ? Number(cell.dataset.v) : cell.classList.contains('n') ? NaN : cell.textContent;
  };
  // Missing numbers stay last in both directions.
  const compare = (a, b, sign) => {
    if (typeof a === 'string') return sign * (a < b ? -1 : a > b ? 1 : 0);
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
    return sign * (a - b);
  };
  for (const table of document.querySelectorAll('table.sortable')) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement('button');
      button.type = 'button';
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener('click', () => {
        const sign = head.getAttribute('aria-sort') === 'ascending' ? -1 : 1;
        for (const other of heads) other.removeAttribute('aria-sort');
        head.setAttribute('aria-sort', sign > 0 ? 'ascending' : 'descending');
        const rows = [...table.tBodies[0].rows].map((row) => [value(row, column), row]);
        rows.sort((a, b) => compare(a[0], b[0], sign));
        table.tBodies[0].append(...rows.map((pair) => pair[1]));
      });
    });
  }
  const tools = document.getElementById('tools');
  const table = document.getElementById('candidate-table');
  if (tools && table) {
    const label = document.createElement('label');
    const input = document.createElement('input');
    const count = document.createElement('output');
    input.type = 'search';
    label.append('Filter ', input);
    input.addEventListener('input', () => {
      const words = input.value.toLowerCase().split(/\s+/);
      let shown = 0;
      for (const row of table.tBodies[0].rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      count.value = shown + ' rows';
    });
    tools.append(label, count);
  }
  const save = document.getElementById('save');
  if (save) {
    const button = document.createElement('button');
    button.type = 'button';
    button.textContent = 'Save the data as JSON';
    button.addEventListener('click', () => {
      const link = document.createElement('a');
      link.href = URL.createObjectURL(new Blob([document.getElementById('data').textContent], {type: 'application/json'}));
      link.download = 'muse-report.json';
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
    save.append(button);
  }
})();
