// Draws the charts, and hands what the reader chooses to all of them.
const page = JSON.parse(document.getElementById("data").textContent);
const controls = document.getElementById("controls"); // of explore
const views = new Map(); // id of a chart -> its Vega view
const PRINTED = { width: 300, height: 170 }; // px of a chart on A4, two in a row

// Tables come as columns, repeated values as runs, which is shorter; Vega wants records.
function records(columns) {
  const names = Object.keys(columns);
  const whole = names.map((name) => {
    const column = columns[name];
    if (Array.isArray(column)) return column;
    const [values, lengths] = column.runs;
    return values.flatMap((value, run) => Array(lengths[run]).fill(value));
  });
  return whole[0].map((_, row) => Object.fromEntries(names.map((name, at) => [name, whole[at][row]])));
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
  for (const id of ["shown", "batch"]) {
    const list = document.getElementById(id);
    if (list) chosen[id] = Number(list.value);
  }
  return chosen;
}

// A title states a finding on whole traces; for a part of the layers the chart says what it draws.
function retitle({ traces, batch, shown = page.signals.shown }) {
  const ends = document.querySelectorAll("#first-layer, #last-layer");
  const whole = [...ends].every((one) => one.value === one.defaultValue);
  for (const [id, titles] of Object.entries(page.titles)) {
    const key = `${traces[0]}|${shown}`;
    const title = whole && (titles[key] ?? titles[`${key}|${batch}`]);
    document.querySelector(`#${id}-card h3`).textContent = title || document.getElementById(id).ariaLabel;
  }
}

// Tiles, lines and the table by layer follow the chosen buffer, and where there are controls the
// policy; there the tiles come with the verdict.
function follow({ traces, shown = page.signals.shown }) {
  const policy = controls?.elements.policy.value ?? page.policy;
  const [any] = Object.values(page.answers);
  for (const block of document.querySelectorAll("[data-trace]")) {
    const found = page.answers[`${block.dataset.trace}|${shown}|${policy}`];
    for (const name of controls ? [] : Object.keys(any.tiles)) {
      const tile = block.querySelector(`[data-tile="${name}"]`);
      if (tile) write(tile, ...(found?.tiles[name] ?? ["-", "not swept"]));
    }
    for (const name of Object.keys(any.lines)) {
      const line = block.querySelector(`[data-line="${name}"] dd`);
      if (line) line.textContent = found?.lines[name].replaceAll(" %", "\u00a0%") ?? "Not swept.";
    }
  }
  const table = document.getElementById("layer-table");
  if (!table) return;
  const rates = new Map(
    datasets.sweep
      .filter((row) => row.buffer === shown && row.layer !== null)
      .map((row) => [`${row.trace}|${row.layer}|${row.policy}`, row.misses / row.steps]),
  );
  table.parentElement.querySelector("summary").textContent = `In a table (${shown.toLocaleString("en")} slots)`;
  for (const row of table.querySelectorAll("tbody tr")) {
    const cells = [...row.cells].map((cell) => cell.textContent);
    const named = row.cells.length - page.signals.policies.length; // trace, if there are several, and layer
    const of = named > 1 ? cells.slice(0, named).join("|") : `${traces[0]}|${cells[0]}`;
    page.signals.policies.forEach((policy, at) => {
      const rate = rates.get(`${of}|${policy}`);
      row.cells[named + at].textContent = rate?.toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 }) ?? "-";
    });
  }
}
function write(tile, value, note) {
  tile.querySelector(".value").textContent = value.replaceAll(" %", "\u00a0%");
  tile.querySelector(".small").textContent = note.replaceAll(" %", "\u00a0%");
}

function set(chosen) {
  if (chosen.traces) retitle(chosen);
  if (chosen.traces && Object.keys(page.answers).length) follow(chosen);
  for (const [id, view] of views) {
    const known = new Set(page.charts[id].params.map((parameter) => parameter.name));
    const named = Object.entries(chosen).filter(([name]) => known.has(name));
    if (!named.length) continue;
    for (const [name, value] of named) view.signal(name, value);
    view.runAsync();
  }
}

// A policy of the legend under the pointer or with the keyboard's focus stands out in all charts.
const focus = (event, name) => {
  const label = event.target.closest("[data-focus]");
  if (label) set({ focus: name ?? label.dataset.focus });
};
const legend = document.getElementById("choices");
for (const kind of ["pointerover", "focusin"]) legend?.addEventListener(kind, (event) => focus(event));
for (const kind of ["pointerout", "focusout"]) legend?.addEventListener(kind, (event) => focus(event, ""));

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

function save(text, type, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

// The chart as it is drawn, below its title and legend, with the colours that variables stand for now.
async function svgOf(id) {
  const LINE = 24;
  const style = getComputedStyle(document.documentElement);
  const drawn = new DOMParser().parseFromString(await views.get(id).toSVG(), "image/svg+xml").documentElement;
  const [width, height] = ["width", "height"].map((name) => Number(drawn.getAttribute(name)));
  const entries = [];
  let [x, y] = [8, LINE + 8];
  for (const name of page.charts[id].usermeta.legend) {
    const whole = `[data-legend=${name}]:not(:has(input:not(:checked)))`;
    for (const entry of document.querySelectorAll(`#choices ${whole}, #${id}-card ${whole}`)) {
      const room = 26 + 9 * entry.textContent.length + 24;
      if (x > 8 && x + room > width) [x, y] = [8, y + LINE];
      const swatch = entry.querySelector("svg");
      const looks = ["stroke", "fill"].map((look) => `${look}="${swatch.getAttribute(look) ?? "none"}"`).join(" ");
      entries.push(`<g transform="translate(${x} ${y})"><g ${looks.replaceAll("currentColor", "var(--ink)")}>${swatch.innerHTML}</g>`
        + `<text x="32" y="10" font-size="12" fill="var(--ink)">${escaped(entry.textContent)}</text></g>`);
      x += room;
    }
  }
  const above = y + (entries.length ? LINE : 0);
  const title = document.querySelector(`#${id}-card h3`).textContent;
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height + above}" viewBox="0 0 ${width} ${height + above}"`
    + ` font-family="system-ui, sans-serif"><rect width="100%" height="100%" fill="var(--paper)"/>`
    + `<text x="8" y="20" font-size="${Math.min(14, width / (0.6 * title.length))}" font-weight="bold" fill="var(--ink)">${escaped(title)}</text>${entries.join("")}`
    + `<g transform="translate(0 ${above})">${new XMLSerializer().serializeToString(drawn)}</g></svg>`;
  return svg.replace(/var\((--[a-z0-9]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
}
function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

// What a chart draws, a row per datum of its marks, as often as it differs.
function rowsOf(id) {
  const columns = page.charts[id].usermeta.columns;
  const rows = new Map();
  const visit = (item) => {
    if (item.marktype && item.role === "mark") {
      for (const one of item.items) {
        const datum = one.datum?.datum ?? one.datum;
        if (!datum || !(columns.at(-1) in datum)) continue;
        const row = columns.map((name) => datum[name]);
        rows.set(JSON.stringify(row), row);
      }
    }
    item.items?.forEach(visit);
  };
  visit(views.get(id).scenegraph().root);
  return [...rows.values()];
}
function csvOf(id) {
  const cell = (value) => {
    const text = value == null ? "" : String(value);
    const safe = typeof value === "string" && /^'*[=+@\t\r-]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [page.charts[id].usermeta.columns, ...rowsOf(id)].map((row) => row.map(cell).join(",") + "\n").join("");
}

async function draw(id, spec) {
  const place = document.getElementById(id);
  const { view } = await window.vegaEmbed(place, { ...spec, datasets: used(spec) }, {
    actions: false,
    renderer: "svg",
    logLevel: 1, // errors only: nothing ticked is no fault
    tooltip: { disableDefaultStyle: true },
  });
  views.set(id, view);
  const field = place.dataset.zoom;
  if (field) place.addEventListener("keydown", (event) => zoomByKey(event, view, field));
  // A line under the pointer stands out in its chart.
  if (spec.params.some((parameter) => parameter.name === "focus")) {
    let over = "";
    const point = (name) => {
      if (name !== over) view.signal("focus", (over = name)).runAsync();
    };
    const policyOf = (item) => [item?.datum, item?.datum?.datum].find((datum) => datum?.policy)?.policy;
    view.addEventListener("pointermove", (_, item) => point(policyOf(item) ?? ""));
    place.addEventListener("pointerleave", () => point(""));
  }
}

// The data of a chart: Vega copies every table that a specification names.
function used(spec) {
  const name = spec.data.name;
  return { [name]: datasets[name] };
}

document.addEventListener("change", (event) => {
  if (event.target.matches("#choices input, #choices select, #batch")) set(choices());
});
document.addEventListener("click", async (event) => {
  const { export: kind, chart: id } = event.target.dataset;
  if (kind === "svg") save(await svgOf(id), "image/svg+xml", `${id}.svg`);
  if (kind === "csv") save(csvOf(id), "text/csv", `${id}.csv`);
});

// Live controls: the answer of a choice comes from the server of this page, or is held by it.
const token = new URLSearchParams(location.search).get("token");
let asked = 0;
async function answerOf(values) {
  if (page.live.answers) {
    const [verdict, tiles] = page.live.answers[values.map(([, value]) => value).join("|")];
    return { verdict, tiles: Object.entries(tiles).map(([name, [value, note]]) => ({ name, value, note })) };
  }
  const reply = await fetch(`answer?${new URLSearchParams([...values, ["token", token]])}`);
  if (!reply.ok) throw new Error(await reply.text());
  return reply.json();
}
async function answer() {
  const number = ++asked;
  const values = [...controls.elements].map((list) => [list.name, list.value]);
  let found;
  try {
    found = await answerOf(values);
  } catch {
    found = { verdict: "No answer: the command explore has ended.", tiles: [] };
  }
  if (number !== asked) return; // a later choice is on its way
  document.querySelector(".verdict").textContent = found.verdict;
  const of = new Map(found.tiles.map((tile) => [tile.name, tile]));
  for (const tile of document.querySelectorAll(".tiles .tile")) {
    const { value, note } = of.get(tile.dataset.tile) ?? { value: "-", note: "" };
    write(tile, value, note);
  }
  const shown = document.getElementById("shown");
  const buffer = values.find(([name]) => name === "buffer")[1];
  if (shown && [...shown.options].some((one) => one.value === buffer)) shown.value = buffer;
  set(choices());
}
controls?.addEventListener("change", answer);

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

// Paper is as wide as it is; what is folded stays away from it.
addEventListener("beforeprint", () => {
  for (const [id, view] of views) {
    if (page.charts[id].height === page.height) view.height(PRINTED.height);
    view.width(PRINTED.width).run();
  }
});
addEventListener("afterprint", () => {
  for (const [id, view] of views) view.height(page.charts[id].height).run();
  dispatchEvent(new Event("resize"));
});

// One after the other, the topmost first: the page answers meanwhile.
for (const [id, spec] of Object.entries(page.charts)) {
  await new Promise((next) => setTimeout(next));
  await draw(id, spec);
}
set(choices());
Object.assign(window, { rowsOf, csvOf, svgOf }); // for tests, and for the curious
document.documentElement.dataset.ready = "true";
