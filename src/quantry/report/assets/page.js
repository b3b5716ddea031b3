// Shared by all pages: facts, tables that sort and filter by mouse and keyboard, and charts that follow the colour scheme.
const quantry = (() => {
  const facts = () => JSON.parse(document.getElementById("facts").textContent);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const drawn = new Map();
  const text = (value) => (typeof value === "number" ? Number(value.toPrecision(5)).toString() : String(value ?? ""));

  // Sorting: every heading holds a button, so Tab and Enter reach it.
  const key = (row, column) => {
    const words = row.cells[column].textContent.trim();
    const number = parseFloat(words.replace(/^[~±]/, "").replace(/,/g, ""));
    return words === "exact" ? Infinity : Number.isNaN(number) ? words : number;
  };
  const sort = (table, column, up) => {
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const [x, y] = [key(a, column), key(b, column)];
      if (x === "" || y === "") return x === y ? 0 : x === "" ? 1 : -1;
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return up ? order : -order;
    });
    table.tBodies[0].append(...rows);
    [...table.tHead.rows[0].cells].forEach((heading, index) => {
      if (index === column) heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      else heading.removeAttribute("aria-sort");
    });
  };
  const filter = (input) => {
    const parts = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...document.getElementById(input.dataset.table).tBodies[0].rows];
    for (const row of rows) {
      const words = row.textContent.toLowerCase();
      row.hidden = !parts.every((part) => words.includes(part));
    }
    const shown = document.getElementById(`${input.dataset.table}-count`);
    if (shown) shown.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };
  const tables = (root) => {
    for (const table of root.querySelectorAll("table.sortable")) {
      [...table.tHead.rows[0].cells].forEach((heading, column) => {
        heading.querySelector("button")?.addEventListener("click", () =>
          sort(table, column, heading.getAttribute("aria-sort") !== "ascending"));
      });
    }
    for (const input of root.querySelectorAll("input[data-table]")) input.addEventListener("input", () => filter(input));
  };

  // Charts are SVG: they print sharply, and their elements can be read. Every chart also has its numbers in a table.
  const chart = (id, option, onClick) => {
    const box = document.getElementById(id);
    if (!box) return null;
    let one = echarts.getInstanceByDom(box);
    if (!one) {
      one = echarts.init(box, null, { renderer: "svg" });
      new ResizeObserver(() => one.resize()).observe(box);
      if (onClick) one.on("click", onClick);
    }
    drawn.set(id, () => one.setOption(styled(option()), { notMerge: false, replaceMerge: ["series"] }));
    drawn.get(id)();
    box.querySelector("svg")?.setAttribute("aria-hidden", "true");
    return one;
  };
  const styled = (option) => {
    const soft = { color: css("soft") };
    const axis = {
      axisLabel: soft, nameTextStyle: soft, axisLine: { lineStyle: { color: css("line") } },
      splitLine: { lineStyle: { color: css("line") } },
    };
    const spread = (given) => (Array.isArray(given) ? given.map((one) => ({ ...axis, ...one, axisLabel: { ...soft, ...one.axisLabel } })) : given && { ...axis, ...given, axisLabel: { ...soft, ...given.axisLabel } });
    return {
      animation: !matchMedia("(prefers-reduced-motion: reduce)").matches,
      animationDuration: 250,
      // A real font name: the library measures texts with it.
      textStyle: { fontFamily: "system-ui, sans-serif", color: css("ink") },
      grid: { left: 12, right: 26, top: 34, bottom: 30 },
      legend: { top: 0, left: 0, itemWidth: 18, itemHeight: 12, textStyle: { color: css("ink") }, type: "scroll" },
      tooltip: { confine: true, backgroundColor: css("paper"), borderColor: css("line"), textStyle: { color: css("ink"), fontSize: 13 } },
      ...option,
      xAxis: spread(option.xAxis), yAxis: spread(option.yAxis),
    };
  };
  const redraw = () => drawn.forEach((draw) => draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => document.querySelectorAll(".chart").forEach((box) => echarts.getInstanceByDom(box)?.resize()));

  const safe = (words) => String(words).replace(/[&<>"']/g, (mark) => `&#${mark.charCodeAt(0)};`);
  const pages = {};
  const start = () => {
    tables(document);
    pages[document.body.dataset.page]?.(facts());
    document.body.dataset.ready = "yes";
  };
  return { facts, css, chart, tables, sort, filter, pages, start, redraw, safe, text };
})();
addEventListener("DOMContentLoaded", quantry.start);
