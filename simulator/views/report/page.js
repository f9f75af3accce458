// Draws the charts, and hands what the reader chooses to all of them.
const page = JSON.parse(document.getElementById("data").textContent);
const views = new Map(); // id of a chart -> its Vega view

// Tables come as columns, which is shorter; Vega wants records.
function records(columns) {
  const names = Object.keys(columns);
  return columns[names[0]].map((_, row) => Object.fromEntries(names.map((name) => [name, columns[name][row]])));
}
const datasets = Object.fromEntries(Object.entries(page.tables).map(([name, columns]) => [name, records(columns)]));

function choices() {
  const ticked = (name, as) =>
    [...document.querySelectorAll(`input[name="${name}"]:checked`)].map((box) => as(box.value));
  const chosen = {
    policies: ticked("policy", String),
    buffers: ticked("buffer", Number),
    traces: document.querySelector('input[name="trace"]') ? ticked("trace", String) : page.signals.traces,
  };
  const first = document.getElementById("first-layer");
  if (first) {
    const last = document.getElementById("last-layer");
    chosen.layers = [first.valueAsNumber || 0, Number.isNaN(last.valueAsNumber) ? 1e9 : last.valueAsNumber];
  }
  for (const [id, signal] of [["shown", "shown"], ["batch", "batch"]]) {
    const list = document.getElementById(id);
    if (list) chosen[signal] = Number(list.value);
  }
  const bands = document.getElementById("bands");
  if (bands) chosen.bands = bands.checked;
  return chosen;
}

function apply() {
  const chosen = choices();
  for (const [id, view] of views) {
    const known = new Set(page.charts[id].params.map((parameter) => parameter.name));
    for (const [name, value] of Object.entries(chosen)) if (known.has(name)) view.signal(name, value);
    const { row_height: height, rows } = page.charts[id].usermeta ?? {};
    if (height) view.height(height * rows.reduce((product, name) => product * chosen[name].length, 1));
    view.runAsync();
  }
}

// + and - zoom, arrows move, 0 resets: the same as shift and wheel, drag, and double click.
function zoomByKey(event, view, field) {
  const signal = `zoom_${field}`;
  const scale = view.scale("x");
  const range = scale.range();
  const share = { "+": [0.15, 0.85], "=": [0.15, 0.85], "-": [-0.2, 1.2], ArrowLeft: [-0.15, 0.85], ArrowRight: [0.15, 1.15] }[event.key];
  if (event.key === "0") view.signal(signal, null);
  else if (share) view.signal(signal, share.map((part) => scale.invert(range[0] + part * (range[1] - range[0]))));
  else return;
  event.preventDefault();
  view.runAsync();
}

const drawn = Object.entries(page.charts).map(async ([id, spec]) => {
  const place = document.getElementById(id);
  const shown = await window.vegaEmbed(place, { ...spec, datasets }, {
    actions: false,
    renderer: "svg",
    logLevel: 1, // errors only: nothing ticked is no fault
    tooltip: { disableDefaultStyle: true },
  });
  views.set(id, shown.view);
  const field = place.dataset.zoom;
  if (field) place.addEventListener("keydown", (event) => zoomByKey(event, shown.view, field));
});

document.addEventListener("change", (event) => {
  if (event.target.matches("#choices input, select, #bands")) apply();
});

const button = document.getElementById("theme");
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  button.textContent = theme === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-pressed", String(theme === "dark"));
}
setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
button.addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));

for (const copy of document.querySelectorAll(".copy button")) {
  copy.addEventListener("click", async () => {
    const text = copy.parentElement.querySelector("pre");
    getSelection().selectAllChildren(text); // a reader can copy by hand where the clipboard is closed
    try {
      await navigator.clipboard.writeText(text.textContent);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Selected";
    }
  });
}

// Paper cannot be opened.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => (one.open = true)));

await Promise.all(drawn);
document.documentElement.dataset.ready = "true";
