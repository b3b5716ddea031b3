// Served pages only: the page grows while the search runs, and the buttons pause, resume and stop it.
(() => {
  const bar = document.getElementById("live");
  const state = document.getElementById("live-state");
  const token = bar.dataset.token;
  const buttons = Object.fromEntries(["pause", "run", "stop"].map((action) => [action, document.getElementById(`live-${action}`)]));
  const show = (running, action) => {
    state.textContent = !running ? "finished" : action === "stop" ? "stopping after the running trials" : action === "pause" ? "paused after the running trials" : "running";
    buttons.pause.disabled = !running || action !== "run";
    buttons.run.disabled = !running || action !== "pause";
    buttons.stop.disabled = !running || action === "stop";
  };
  for (const [action, button] of Object.entries(buttons)) {
    button.addEventListener("click", async () => {
      const answer = await fetch("control", { method: "POST", headers: { "X-Quantry-Token": token, "Content-Type": "application/json" }, body: JSON.stringify({ action }) });
      if (!answer.ok) state.textContent = `the server refused: ${await answer.text()}`;
    });
  }

  // The new page replaces the old section by section. Charts stay and get new data; filters and choices are kept.
  const grow = async () => {
    const fresh = new DOMParser().parseFromString(await (await fetch(`page?token=${token}`)).text(), "text/html");
    if (!fresh.getElementById("facts") || !document.getElementById("facts")) return location.reload();
    const choices = [...document.querySelectorAll("main input[id], main select[id]")].map((one) => [one.id, one.value]);
    const order = [...document.querySelectorAll("main table.sortable")].map((table) => {
      const heads = [...table.tHead.rows[0].cells];
      const column = heads.findIndex((head) => head.hasAttribute("aria-sort"));
      return [table.id, column, heads[column]?.getAttribute("aria-sort") === "ascending"];
    });
    const focused = document.activeElement?.id;
    const scrolled = [...document.querySelectorAll("main .long")].map((box) => [box.querySelector("table").id, box.scrollTop]);
    for (const box of fresh.querySelectorAll(".chart")) {
      const old = document.getElementById(box.id);
      if (old) box.replaceWith(old);
    }
    document.querySelector("main").replaceChildren(...fresh.querySelector("main").childNodes);
    document.getElementById("below").innerHTML = fresh.getElementById("below").innerHTML;
    document.querySelector("nav.parts").innerHTML = fresh.querySelector("nav.parts").innerHTML;
    document.getElementById("facts").textContent = fresh.getElementById("facts").textContent;
    quantry.tables(document.querySelector("main"));
    for (const [id, value] of choices) {
      const one = document.getElementById(id);
      if (one) one.value = value;
    }
    quantry.pages.search(quantry.facts());
    for (const [id, column, up] of order) if (column >= 0) quantry.sort(document.getElementById(id), column, up);
    for (const input of document.querySelectorAll("input[data-table]")) if (input.value) quantry.filter(input);
    for (const [id, top] of scrolled) if (id && document.getElementById(id)) document.getElementById(id).parentElement.scrollTop = top;
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    document.body.dataset.grown = String(Number(document.body.dataset.grown ?? 0) + 1);
  };
  const events = new EventSource(`events?token=${token}`);
  events.addEventListener("state", (event) => {
    const now = JSON.parse(event.data);
    show(now.running, now.action);
  });
  events.addEventListener("changed", () => grow().catch((error) => { state.textContent = String(error); }));
  events.onerror = () => { if (events.readyState === EventSource.CLOSED || state.textContent === "running") state.textContent = "no connection to the search"; };
})();
