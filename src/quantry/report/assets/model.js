// The page of a quantized model: a heat map of the error along the graph, histograms, and images that changed.
quantry.pages.model = (facts) => {
  const { chart, css, safe, text } = quantry;
  const strip = facts.strip;
  const top = 60;
  const short = (value) => text(Number(value.toPrecision(3)));
  const decibel = (value) => (value == null ? "-" : value === "inf" ? "exact" : `${text(value)} dB`);
  const level = (value) => (value == null ? null : value === "inf" ? top : Math.max(0, Math.min(top, value)));
  const rows = ["accumulated", "output alone", "weight alone"];
  const keys = ["gathered", "activation", "weight"];
  const heat = () => ({
    legend: { show: false },
    tooltip: {
      confine: true, backgroundColor: css("paper"), borderColor: css("line"), textStyle: { color: css("ink") },
      formatter: (event) => {
        const layer = strip[event.data[0]];
        return `<b>${safe(layer.operator)}</b> ${safe(layer.node)}<br>accumulated ${decibel(layer.gathered)}<br>output alone ${decibel(layer.activation)}<br>weight alone ${decibel(layer.weight)}`;
      },
    },
    grid: { left: 12, right: 14, top: 8, bottom: 92 },
    xAxis: { type: "category", data: strip.map((layer, index) => `${index}`), axisLabel: { show: false }, axisTick: { show: false } },
    yAxis: { type: "category", inverse: true, data: rows },
    dataZoom: [
      { type: "slider", bottom: 44, height: 22, labelFormatter: (index) => strip[index]?.node.slice(-22) ?? "", textStyle: { color: css("soft") } },
      { type: "inside", zoomOnMouseWheel: "ctrl" },
    ],
    visualMap: { min: 0, max: top, orient: "horizontal", left: "center", bottom: 0, itemHeight: 90, itemWidth: 12, text: ["60 dB: exact", "0 dB: lost"], textStyle: { color: css("soft") }, inRange: { color: ["#8c1d18", "#e4682a", "#f3d250", "#5fb96c", "#1b7f4b"] } },
    series: [{
      type: "heatmap", progressive: 0, emphasis: { itemStyle: { borderColor: css("ink"), borderWidth: 1 } },
      data: strip.flatMap((layer, index) => keys.map((key, row) => [index, row, level(layer[key])]).filter((cell) => cell[2] != null)),
    }],
  });
  const line = () => ({
    legend: { show: false },
    tooltip: { trigger: "axis", confine: true, backgroundColor: css("paper"), borderColor: css("line"), textStyle: { color: css("ink") }, formatter: ([event]) => `${safe(strip[event.dataIndex].operator)} ${safe(strip[event.dataIndex].node)}<br>${decibel(strip[event.dataIndex].gathered)}` },
    xAxis: { type: "category", data: strip.map((layer) => layer.node), axisLabel: { show: false }, name: "input to output", nameLocation: "middle", nameGap: 10 },
    yAxis: { type: "value", name: "dB", max: top },
    dataZoom: [{ type: "inside", zoomOnMouseWheel: "ctrl" }],
    series: [
      { type: "line", data: strip.map((layer) => level(layer.gathered)), symbol: "none", connectNulls: true, lineStyle: { color: css("blue"), width: 2 } },
      { type: "scatter", data: strip.map((layer) => (facts.falls.includes(layer.tensor) ? level(layer.gathered) : null)), symbolSize: 10, itemStyle: { color: css("red") } },
    ],
  });

  const picker = document.getElementById("tensor");
  const histogram = () => {
    const one = facts.histograms[picker.value];
    const width = (one.high - one.low) / one.counts.length;
    const middle = (index) => one.low + (index + 0.5) * width;
    const edge = (value) => ({ xAxis: value, label: { formatter: short(value), color: css("red"), position: "insideEndTop", rotate: 0, distance: 4 } });
    return {
      legend: { show: false },
      tooltip: { trigger: "axis", confine: true, backgroundColor: css("paper"), borderColor: css("line"), textStyle: { color: css("ink") }, formatter: ([event]) => `around ${text(event.value[0])}: ${event.value[1]} values` },
      xAxis: { type: "value", min: one.low, max: one.high, name: "value", nameLocation: "middle", nameGap: 28, axisLabel: { formatter: short, hideOverlap: true } },
      yAxis: { type: "log", min: 0.5, name: "values (log)", axisLabel: { formatter: (value) => (value < 1 ? "" : value >= 1000 ? `1e${Math.round(Math.log10(value))}` : value) } },
      grid: { left: 12, right: 30, top: 36, bottom: 34 },
      series: [{
        type: "bar", barWidth: "99%", large: false, data: one.counts.map((count, index) => [middle(index), count || null]), itemStyle: { color: css("blue") },
        markLine: { symbol: "none", silent: true, data: one.range.map(edge), lineStyle: { color: css("red"), type: "dashed", width: 2 } },
      }],
    };
  };
  const describe = () => {
    const one = facts.histograms[picker.value];
    document.getElementById("tensor-facts").textContent =
      `${one.kind} ${one.dtype}; values ${short(one.seen[0])} to ${short(one.seen[1])}; the integers cover ${short(one.range[0])} to ${short(one.range[1])}; ${decibel(one.sqnr)} alone`;
  };
  const choose = (name) => {
    if (!picker || !(name in facts.histograms)) return;
    picker.value = name;
    chart("histogram", histogram);
    describe();
  };
  picker?.addEventListener("change", () => choose(picker.value));

  if (strip.length) {
    chart("heat", heat, (event) => {
      const layer = strip[event.data[0]];
      choose(event.data[1] === 2 ? layer.weight_name : layer.tensor);
    });
    chart("line", line);
  }
  if (picker?.value) choose(picker.value);
};
