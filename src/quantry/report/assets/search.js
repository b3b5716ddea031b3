// The page of one or several searches: Pareto chart, best so far, importance, parallel coordinates, recipe differences.
quantry.pages.search = (facts) => {
  const { chart, css, safe, text } = quantry;
  const search = facts.searches[0];
  const trials = search.trials;
  const scored = trials.filter((trial) => typeof trial.score === "number");
  const upwards = search.direction === "maximize";
  const kinds = {
    best: () => css("violet"), accepted: () => css("green"), "not accepted": () => css("blue"), trial: () => css("blue"), pruned: () => css("soft"),
  };
  // Without a tolerance every trial is accepted, which says nothing.
  const kind = (trial) =>
    trial.number === search.best ? "best" : trial.state === "pruned" ? "pruned" : search.tolerance == null ? "trial" : trial.accepted ? "accepted" : "not accepted";
  const marks = { best: "diamond", accepted: "circle", "not accepted": "rect", trial: "circle", pruned: "emptyCircle" };
  // Sizes are bytes and latencies milliseconds.
  const short = (value) => text(Number(value.toPrecision(3)));
  const measured = (name, value) => (name === "size" ? (value >= 1e6 ? `${short(value / 1e6)} MB` : `${short(value / 1e3)} kB`) : name === "latency" ? `${short(value)} ms` : text(value));
  const about = (trial) => {
    const lines = [`<b>trial ${trial.number}</b>: ${safe(search.metric)} ${text(trial.score)}${trial.drop == null ? "" : `, drop ${text(trial.drop)}`}`];
    for (const [name, value] of Object.entries(trial.objectives)) if (name !== "accuracy") lines.push(`${safe(name)} ${safe(measured(name, value))}`);
    lines.push(safe(trial.configuration));
    return lines.join("<br>");
  };
  const choose = (number) => {
    document.querySelectorAll("tr.chosen").forEach((row) => row.classList.remove("chosen"));
    const row = document.getElementById(`trial-${number}`);
    if (!row) return;
    row.hidden = false;
    row.classList.add("chosen");
    row.scrollIntoView({ block: "center" });
    row.focus({ preventScroll: true });
    const second = document.getElementById("second-recipe");
    if (second) { second.value = String(number); differences(); }
  };
  const onClick = (event) => event.data?.number != null && choose(event.data.number);

  const axes = search.objectives.filter((name) => name !== "accuracy");
  // The lines of the float model and the tolerance stay in view.
  // Marks at the edge of the chart would be cut off.
  const levels = search.float == null ? [] : [search.float, ...(search.tolerance == null ? [] : [search.float + (upwards ? -1 : 1) * search.tolerance])];
  const edge = (range, side) => {
    const low = Math.min(range.min, ...levels), high = Math.max(range.max, ...levels);
    return (side < 0 ? low : high) + side * 0.06 * (high - low || Math.abs(high) || 1);
  };
  const around = { axisLabel: { formatter: text, showMinLabel: false, showMaxLabel: false }, min: (range) => edge(range, -1), max: (range) => edge(range, 1) };
  const picker = document.getElementById("pareto-axis");
  const pareto = () => {
    const name = picker?.value || axes[0] || "time";
    const across = (trial) => (name === "time" ? trial.at : trial.objectives[name]);
    const points = (wanted) => scored.filter((trial) => kind(trial) === wanted && across(trial) != null)
      .map((trial) => ({ value: [across(trial), trial.score], number: trial.number, trial }));
    const front = search.pareto.map((number) => trials[number]).filter((trial) => trial && across(trial) != null)
      .sort((a, b) => across(a) - across(b)).map((trial) => [across(trial), trial.score]);
    // Both lines may be close to each other, so their names are on different sides.
    const lines = [{ yAxis: search.float, name: "float", label: { position: "insideEndTop" } }];
    if (search.tolerance != null) lines.push({ yAxis: search.float + (upwards ? -1 : 1) * search.tolerance, name: "tolerance", label: { position: "insideStartBottom" } });
    return {
      tooltip: { confine: true, trigger: "item", formatter: (event) => (event.data?.trial ? about(event.data.trial) : ""), backgroundColor: css("paper"), borderColor: css("line"), textStyle: { color: css("ink") } },
      xAxis: { name: name === "time" ? "seconds since the start" : name, nameLocation: "middle", nameGap: 28, type: "value", scale: true, axisLabel: { formatter: (value) => (name === "time" ? text(value) : measured(name, value)), hideOverlap: true } },
      yAxis: { name: search.metric, type: "value", scale: true, ...around },
      grid: { left: 12, right: 30, top: 56, bottom: 34 },
      series: [
        ...Object.keys(kinds).filter((wanted) => scored.some((trial) => kind(trial) === wanted)).map((wanted) => ({
          name: wanted, type: "scatter", data: points(wanted), symbol: marks[wanted], symbolSize: wanted === "best" ? 17 : 10,
          itemStyle: { color: kinds[wanted](), opacity: 0.85 }, z: wanted === "best" ? 5 : 3,
          markLine: wanted === "best" && search.float != null ? { symbol: "none", silent: true, data: lines, lineStyle: { color: css("soft"), type: "dashed" }, label: { formatter: "{b}", color: css("soft") } } : undefined,
        })),
        ...(axes.length && name !== "time" ? [{ name: "Pareto front", type: "line", step: upwards ? "end" : "end", data: front, symbol: "none", lineStyle: { color: css("violet"), type: "dotted" }, itemStyle: { color: css("violet") } }] : []),
      ],
    };
  };
  picker?.addEventListener("change", () => chart("pareto", pareto, onClick));

  const best = () => ({
    tooltip: { trigger: "axis", confine: true, backgroundColor: css("paper"), borderColor: css("line"), textStyle: { color: css("ink") }, valueFormatter: text },
    xAxis: { name: "seconds since the start", nameLocation: "middle", nameGap: 28, type: "value" },
    yAxis: { name: search.metric, type: "value", scale: true, axisLabel: { formatter: text, hideOverlap: true } },
    grid: { left: 12, right: 30, top: 56, bottom: 34 },
    series: facts.searches.map((one, index) => {
      let top = null;
      const points = [];
      for (const trial of one.trials) {
        if (trial.state !== "complete" || typeof trial.score !== "number") continue;
        // A mark only where the best changes: with hundreds of trials the others would cover the line.
        if (top !== null && !(one.direction === "maximize" ? trial.score > top : trial.score < top)) continue;
        top = trial.score;
        points.push({ value: [trial.at, top] });
      }
      const last = Math.max(one.seconds, ...one.trials.map((trial) => trial.at ?? 0));
      if (points.length && last > points.at(-1).value[0]) points.push({ value: [last, top], symbol: "none" });
      const colour = [css("blue"), css("amber"), css("green"), css("violet")][index % 4];
      return { name: facts.searches.length > 1 ? one.title : "best so far", type: "line", step: "end", data: points, symbolSize: 5, lineStyle: { color: colour, width: 2 }, itemStyle: { color: colour } };
    }),
  });

  const importance = () => ({
    legend: { show: false },
    tooltip: { trigger: "item", confine: true, backgroundColor: css("paper"), borderColor: css("line"), textStyle: { color: css("ink") }, formatter: (event) => `${safe(event.name)}: ${event.value} %` },
    xAxis: { type: "value", max: 100, name: "% of the variance of the score", nameLocation: "middle", nameGap: 28 },
    yAxis: { type: "category", inverse: true, data: search.importance.map((entry) => entry.parameter), axisLabel: { width: Math.min(230, innerWidth / 3), overflow: "truncate" } },
    grid: { left: 12, right: 30, top: 8, bottom: 34 },
    series: [{ type: "bar", barMaxWidth: 22, data: search.importance.map((entry) => Math.round(entry.share * 1000) / 10), itemStyle: { color: css("blue"), borderRadius: [0, 4, 4, 0] } }],
  });

  const varied = search.importance.map((entry) => entry.parameter);
  const parallel = () => {
    const shown = scored.filter((trial) => trial.state === "complete");
    const scores = shown.map((trial) => trial.score);
    const categories = (name) => [...new Set(shown.map((trial) => trial.assignment[name] ?? "-"))].sort();
    const numeric = (name) => shown.every((trial) => name in trial.assignment && trial.assignment[name] !== "" && Number.isFinite(Number(trial.assignment[name])));
    const axis = { nameTruncate: { maxWidth: Math.max(60, Math.min(innerWidth, 1100) / (varied.length + 1) - 20) }, nameTextStyle: { color: css("ink"), fontSize: 11 }, axisLabel: { color: css("ink"), fontSize: 11, textBorderColor: css("paper"), textBorderWidth: 3, width: Math.max(34, (Math.min(innerWidth, 1160) - 110) / (varied.length + 1) - 22), overflow: "truncate" }, axisLine: { lineStyle: { color: css("soft") } } };
    return {
      legend: { show: false }, tooltip: { show: false },
      parallel: { left: 40, right: 70, top: 46, bottom: 22, parallelAxisDefault: { ...axis, nameLocation: "end" }, axisExpandable: varied.length > 8, axisExpandCount: 6 },
      parallelAxis: [
        ...varied.map((name, dim) => ({ ...axis, dim, name: name.split(".").pop(), ...(numeric(name) ? { type: "value", scale: true } : { type: "category", data: categories(name) }) })),
        { ...axis, dim: varied.length, name: search.metric, type: "value", min: Math.min(...scores), max: Math.max(...scores), axisLabel: { ...axis.axisLabel, formatter: text, showMinLabel: false } },
      ],
      visualMap: { show: false, min: Math.min(...scores), max: Math.max(...scores), dimension: varied.length, inRange: { color: upwards ? [css("red"), css("amber"), css("green")] : [css("green"), css("amber"), css("red")] } },
      series: [{
        type: "parallel", smooth: 0.1, lineStyle: { width: 1.6, opacity: shown.length > 80 ? 0.35 : 0.65 }, emphasis: { lineStyle: { width: 4, opacity: 1 } },
        data: shown.map((trial) => ({ value: [...varied.map((name) => (numeric(name) ? Number(trial.assignment[name]) : trial.assignment[name] ?? "-")), trial.score], number: trial.number })),
      }],
    };
  };

  const differences = () => {
    const first = trials[Number(document.getElementById("first-recipe").value)];
    const second = trials[Number(document.getElementById("second-recipe").value)];
    const body = document.querySelector("#recipe-diff tbody");
    if (!first || !second || !body) return;
    const value = (trial, path) => (path in trial.recipe ? trial.recipe[path] : search.base[path]);
    const paths = [...new Set([...Object.keys(first.recipe), ...Object.keys(second.recipe)])].sort();
    const rows = paths.filter((path) => value(first, path) !== value(second, path))
      .map((path) => `<tr><td><code>${safe(path)}</code></td><td><code>${safe(value(first, path))}</code></td><td><code>${safe(value(second, path))}</code></td></tr>`);
    body.innerHTML = rows.join("") || "<tr><td colspan=3>The recipes are equal.</td></tr>";
    document.querySelectorAll("#recipe-diff th")[1].textContent = `trial ${first.number}`;
    document.querySelectorAll("#recipe-diff th")[2].textContent = `trial ${second.number}`;
  };
  for (const name of ["first-recipe", "second-recipe"]) document.getElementById(name)?.addEventListener("change", differences);
  document.querySelectorAll("#main tbody tr[id]").forEach((row) => {
    row.tabIndex = -1;
    row.addEventListener("click", () => {
      document.querySelectorAll("tr.chosen").forEach((other) => other.classList.remove("chosen"));
      row.classList.add("chosen");
    });
  });

  if (scored.length) {
    chart("pareto", pareto, onClick);
    chart("best", best);
  }
  if (varied.length) {
    chart("importance", importance);
    if (scored.length) chart("parallel", parallel, onClick);
  }
  if (document.getElementById("recipe-diff")) differences();
};
