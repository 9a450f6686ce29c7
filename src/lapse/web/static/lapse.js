// Charts, keys and what a stream of events that breaks off leaves: the pages work without it.
"use strict";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function size(bytes) {
  let value = bytes, unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

// Within a day the time is enough.
function moments(_, ticks) {
  const from = ticks.length && ticks[ticks.length - 1] - ticks[0] > 86400 ? [0, 10] : [11, 19];
  return ticks.map((seconds) => new Date(seconds * 1e3).toISOString().slice(...from));
}

function draw(chart) {
  const text = getComputedStyle(chart).color;
  const style = getComputedStyle(document.documentElement);
  const line = style.getPropertyValue("--line").trim();
  const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  const options = {
    width: chart.clientWidth,
    height: 220,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"),
    scales: { y: { range: (_, low, high) => [Math.min(low, 0), Math.max(high * 1.05, 1)] } },
    legend: { show: false },
    series: [{}, { label: "freed", stroke: style.getPropertyValue("--active").trim(), width: 2, paths: uPlot.paths.stepped({ align: 1 }) }],
    axes: [{ ...axis, space: 90, values: moments }, { ...axis, size: 80, values: (_, ticks) => ticks.map(size) }],
  };
  const plot = new uPlot(options, JSON.parse(chart.dataset.series), chart);
  new ResizeObserver(() => plot.setSize({ width: chart.clientWidth, height: 220 })).observe(chart);
}

document.querySelectorAll(".chart[data-series]").forEach(draw);

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) {
    return;
  }
  if (event.key === "/") {
    const search = document.querySelector("[data-search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
    return;
  }
  const link = document.querySelector(`header nav a[data-key="${CSS.escape(event.key)}"]`);
  if (link) {
    link.click();
  }
});

// What a broker says of others comes as an event. That it is silent itself is seen here, by its beats,
// of which one comes at least every two seconds.
const SILENT_MS = 10000;
let lastHeard = null;

function heard(event) {
  lastHeard = new Date();
  document.getElementById("silent").replaceChildren();
  if (event.type === "overview_inside") {
    document.getElementById("lost").replaceChildren();
  }
}

function saySilent() {
  const silent = document.getElementById("silent");
  if (silent.hasChildNodes()) {
    return;
  }
  const line = document.createElement("p");
  line.className = "trouble fault";
  const moment = lastHeard.toISOString().slice(0, 19).replace("T", " ");
  line.textContent = `The broker does not answer. What is shown is of ${moment} UTC.`;
  silent.replaceChildren(line);
}

htmx.createEventSource = (address) => {
  const source = new EventSource(address);
  lastHeard = new Date();
  for (const name of ["beat", "overview_inside", "lost"]) {
    source.addEventListener(name, heard);
  }
  source.addEventListener("error", saySilent);
  setInterval(() => {
    if (new Date() - lastHeard > SILENT_MS) {
      saySilent();
    }
  }, 1000);
  return source;
};
