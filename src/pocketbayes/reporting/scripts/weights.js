"use strict";
// How it was trained, and what its weights are like.

// -- training -------------------------------------------------------------------------------------------------------

function training() {
  const known = shown().filter(([run]) => run.epochs.length);
  const curves = [
    ["nll", "NLL", "on training data; dashed: validation data; members of an ensemble follow one another"],
    ["kl", "KL to the prior", "in nats, summed over all random weights; not included in the NLL"],
  ];
  const made = curves.map(([key, title, about]) => {
    const pick = (run, name) =>
      run.epochs.map((row, i) => [i + 1, row[name], row]).filter(([, v]) => isNumber(v) && (key !== "kl" || v > 0));
    const more = ([, , row]) => [`stage ${row.stage || "?"}, epoch ${row.epoch ?? "?"}`];
    const series = known
      .flatMap(([run, index]) => [
        { name: run.name, run: index, points: pick(run, key), more },
        { name: `${run.name}, validation`, run: index, dash: "5 4", points: pick(run, `val_${key}`), more },
      ])
      .filter((one) => one.points.length);
    if (!series.length) return null;
    const ys = series.flatMap((one) => one.points.map((p) => p[1]));
    const log = Math.min(...ys) > 0 && Math.max(...ys) / Math.min(...ys) > 20;
    return chart({
      title,
      about,
      x: {
        label: "epochs, all stages",
        domain: domainOf(
          series.flatMap((one) => one.points.map((p) => p[0])),
          { air: 0.01 },
        ),
      },
      y: {
        label: `${title}${key === "kl" ? ", nats" : ""}${log ? " (log)" : ""}`,
        domain: domainOf(ys, { log }),
        log,
        kind: "number",
        tickKind: "round",
      },
      series,
    });
  });
  return [heading("Training", "The fit to the data (NLL) and the distance from the prior (KL), separately."), grid(...made)];
}

// -- weights --------------------------------------------------------------------------------------------------------

function weights() {
  const known = shown().filter(([run]) => list(run.weights.layers).length);
  const cards = known.map(([run, index]) => layerCard(run, index));
  const maps = known.filter(([run]) => run.weights.sigma);
  return [
    heading(
      "Layer by layer",
      "The fraction of weights that are not zero (present), the fraction with a std (random), and the mean std of a drawn weight. Above each table: the numbers that the file stores.",
    ),
    h("div", { class: "grid wide" }, cards),
    maps.length
      ? heading(
          "Uncertainty of the first layer",
          "The std of every weight, one tile per unit. Red is largest, blue smallest, grey has no std.",
        )
      : null,
    maps.length ? grid(...maps.map(([run, index]) => sigmaMap(run, index))) : null,
  ];
}

function layerCard(run, index) {
  const { layers, storage, stored, points, networks, notes } = run.weights;
  const colour = runColour(index);
  const bar = (fraction) =>
    h("span", { class: "cellbar" }, meter(fraction, colour), h("span", {}, write("share", fraction)));
  const rows = layers.map((layer) => [
    layer.name,
    layer.shape.join("×"),
    bar(layer.present),
    bar(layer.random),
    write("short", layer.std),
  ]);
  const facts = [
    ...entries(stored).map(([kind, count]) => `${kind} ${write("count", count)}`),
    `other parameters ${write("count", points)}`,
  ].join(" · ");
  return h(
    "section",
    { class: "card", "data-run": index },
    h(
      "h3",
      {},
      swatch(index),
      run.name,
      h("small", {}, networks > 1 ? `${storage}, first of ${networks} networks` : storage),
    ),
    h("p", { class: "hint" }, `stored numbers: ${facts}`),
    h(
      "div",
      { class: "layers" },
      plainTable(["layer", "shape", "present", "random", "mean std"], rows, `Layers of ${run.name}`),
    ),
    list(notes).length ? h("p", { class: "hint" }, notes.join("; ")) : null,
  );
}

const STOPS = [
  [48, 18, 59],
  [70, 107, 227],
  [40, 187, 236],
  [49, 242, 153],
  [162, 252, 60],
  [237, 208, 58],
  [251, 128, 34],
  [210, 49, 5],
];

/** A colour between dark blue and red for a number from 0 to 1. */
function heat(fraction) {
  const at = Math.min(Math.max(fraction, 0), 1) * (STOPS.length - 1);
  const i = Math.min(Math.floor(at), STOPS.length - 2);
  return STOPS[i].map((v, c) => Math.round(v + (at - i) * (STOPS[i + 1][c] - v)));
}

function sigmaMap(run, index) {
  const { name, shape, units, shown: count, rows, columns, low, high, codes } = run.weights.sigma;
  const bytes = Uint8Array.from(atob(codes), (c) => c.charCodeAt(0));
  const zoom = Math.max(Math.floor(480 / columns), 1);
  const canvas = h("canvas", {
    class: "heat",
    width: columns,
    height: rows,
    role: "img",
    "aria-label": `Stds of ${name} of ${run.name}, from ${write("short", low)} to ${write("short", high)}`,
  });
  canvas.style.width = `${columns * zoom}px`;
  const paint = canvas.getContext("2d");
  const image = paint.createImageData(columns, rows);
  bytes.forEach((code, i) => {
    const [r, g, b] = code < 2 ? [128, 128, 140] : heat((code - 2) / 253);
    image.data.set([r, g, b, code === 0 ? 0 : code === 1 ? 70 : 255], 4 * i);
  });
  paint.putImageData(image, 0, 0);
  canvas.addEventListener("pointermove", (event) => {
    const frame = canvas.getBoundingClientRect();
    const [column, row] = [
      Math.floor(((event.clientX - frame.left) / frame.width) * columns),
      Math.floor(((event.clientY - frame.top) / frame.height) * rows),
    ];
    const code = bytes[row * columns + column];
    if (!code) tip.hide();
    else
      tip.show(
        [code === 1 ? "no std" : `std ${write("short", low + ((code - 2) / 253) * (high - low))}`],
        event.clientX,
        event.clientY,
        index,
      );
  });
  canvas.addEventListener("pointerleave", () => tip.hide());
  const ramp = h("i", {
    class: "ramp",
    "aria-hidden": "true",
    style: `background:linear-gradient(90deg,${STOPS.map((rgb) => `rgb(${rgb})`)})`,
  });
  const about = `${name}, ${shape.join(" × ")}${count < units ? `, the first ${count} of ${units} units` : ""}`;
  return h(
    "figure",
    { class: "chart", "data-run": index },
    h("figcaption", {}, h("strong", {}, run.name), h("span", {}, about)),
    h("div", { class: "heatbox" }, canvas),
    h("div", { class: "ramps" }, write("short", low), ramp, write("short", high)),
  );
}

function plane() {
  const known = shown().filter(([run]) => run.weights.plane);
  const options = known.map(([run, index]) => [String(index), run.name]);
  return [
    heading(
      "The plane",
      "Each weight is a point: its mean (horizontal) and its std (vertical) before sharing. Weights that lie close together share one Gaussian, in whatever layer they are. The std of a weight drawn from a Gaussian is the \"drawn std\" of the table, as in the tab Weights.",
    ),
    choosing([{ name: "run", label: "Network", options }], ({ run }) =>
      run === undefined ? null : planeView(runs[Number(run)], Number(run)),
    ),
  ];
}
