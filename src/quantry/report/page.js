// Filters the table of tensors by name, and sorts it by the column whose heading is clicked.
const table = document.getElementById("main");
if (table) {
  const body = table.tBodies[0];
  document.getElementById("filter").addEventListener("input", (event) => {
    const part = event.target.value.toLowerCase();
    for (const row of body.rows) row.hidden = !row.cells[0].textContent.toLowerCase().includes(part);
  });
  const key = (row, column) => {
    const text = row.cells[column].textContent;
    const number = parseFloat(text);
    return Number.isNaN(number) ? (text === "exact" ? Infinity : text) : number;
  };
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    let up = false;
    heading.addEventListener("click", () => {
      up = !up;
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [key(a, column), key(b, column)];
        const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
        return up ? order : -order;
      });
      body.append(...rows);
    });
  });
}
