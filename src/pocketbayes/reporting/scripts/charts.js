"use strict";
// Small charts in SVG.

const sizes = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const width = Math.round(entry.contentRect.width);
    if (width > 0 && width !== entry.target.drawnWidth) entry.target.redraw(width);
  }
});

/**
 * A figure with axes. `series`: {name, run, points: [[x, y, ...]], line, area, dash, dots, step}; `bars`: {x0, x1, y0, y1, fill, hatch};
 * `hits`: what the pointer and the arrow keys find, {x, y, lines, run}, made of the points where it is left out.
 * The numbers stand in a table under the chart, for those who cannot see it and those who want to copy them.
 */
function chart(options) {
  const canvas = h("div", { class: "canvas" });
  canvas.redraw = (width) => {
    canvas.drawnWidth = width;
    canvas.replaceChildren(drawing(options, width));
  };
  canvas.redraw(options.width || 460);
  sizes.observe(canvas);
  const caption = h(
    "figcaption",
    {},
    h("strong", {}, options.title),
    options.about ? h("span", {}, options.about) : null,
  );
  return h(
    "figure",
    { class: `chart ${options.small ? "small" : ""}`, "data-run": options.run },
    caption,
    options.key ? key(options.key) : null,
    canvas,
    numbersOf(options),
  );
}

function key(entries) {
  return h(
    "ul",
    { class: "key" },
    entries.map(([name, colour, dash]) => {
      const line = s(
        "svg",
        { viewBox: "0 0 24 8", "aria-hidden": "true" },
        s("line", { x1: 1, x2: 23, y1: 4, y2: 4, "stroke-dasharray": dash || null, style: `stroke:${colour}` }),
      );
      return h("li", {}, line, name);
    }),
  );
}

function drawing(options, width) {
  const { x, y, series = [], bars = [] } = options;
  const height = options.height || Math.round(Math.min(Math.max(width * 0.62, 210), 340));
  const wide = Math.max(...(y.names || []).map((name) => Math.min(name.length, 16)), 0);
  const box = {
    left: wide ? 14 + 6.4 * wide : y.label ? 62 : 48,
    right: width - 18,
    top: 10,
    bottom: height - (x.label ? 44 : 26),
  };
  const xs = scale(x.domain, [box.left, box.right], x.log);
  const ys = scale(y.domain, [box.bottom, box.top], y.log);
  const clip = `clip-${(drawing.count = (drawing.count || 0) + 1)}`;
  const hits = (options.hits || series.flatMap((one) => pointHits(one, x, y))).filter(
    (hit) => isNumber(xs.at(hit.x)) && isNumber(ys.at(hit.y)),
  );
  const ring = s("circle", { class: "ring", r: 6, visibility: "hidden" });
  const root = s(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      tabindex: hits.length ? 0 : null,
      "aria-label": describe(options, hits.length),
    },
    s(
      "defs",
      {},
      s(
        "clipPath",
        { id: clip },
        s("rect", {
          x: box.left - 4,
          y: box.top - 4,
          width: box.right - box.left + 8,
          height: box.bottom - box.top + 8,
        }),
      ),
    ),
    axes(x, y, xs, ys, box),
    s(
      "g",
      { "clip-path": `url(#${clip})` },
      bars.map((bar) => rectangle(bar, xs, ys)),
      (options.marks || []).map((mark) => guide(mark, xs, ys)),
      series.map((one) => drawSeries(one, xs, ys, box)),
    ),
    pointLabels(options.labels || [], xs, ys, box),
    ring,
  );
  if (hits.length) listen(root, ring, hits, xs, ys, options.nearest);
  return root;
}

function describe(options, count) {
  const parts = [
    options.title,
    options.about,
    options.x.label && `x: ${options.x.label}`,
    options.y.label && `y: ${options.y.label}`,
  ];
  return parts.filter(Boolean).join("; ") + (count ? ". Arrow keys read the values; a table follows." : ".");
}

function pointHits(one, x, y) {
  return one.points.map((point) => ({
    x: point[0],
    y: point[1],
    run: one.run,
    lines: [
      one.name,
      `${x.label || "x"}: ${write(x.kind || "short", point[0])}`,
      `${one.what || y.label || "y"}: ${write(y.kind || "number", point[1])}`,
      ...(one.more ? one.more(point) : []),
    ],
  }));
}

function axes(x, y, xs, ys, box) {
  const across = x.ticks || xs.ticks(Math.max(Math.floor((box.right - box.left) / 64), 2));
  const up = y.ticks || ys.ticks(5);
  const kindX = WRITERS[x.tickKind || "short"];
  const kindY = WRITERS[y.tickKind || "short"];
  const names = y.names && y.names.map((name) => (name.length > 16 ? name.slice(0, 15) + "…" : name));
  return s(
    "g",
    { class: "axes" },
    across.map((v) => s("line", { class: "grid", x1: xs.at(v), x2: xs.at(v), y1: box.top, y2: box.bottom })),
    up.map((v) => s("line", { class: "grid", x1: box.left, x2: box.right, y1: ys.at(v), y2: ys.at(v) })),
    s("line", { class: "base", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    across.map((v) =>
      s("text", { x: xs.at(v), y: box.bottom + 17, "text-anchor": "middle" }, x.write ? x.write(v) : kindX(v)),
    ),
    up.map((v, i) =>
      s(
        "text",
        { x: box.left - 7, y: ys.at(v) + 4, "text-anchor": "end" },
        names ? names[i] : y.write ? y.write(v) : kindY(v),
      ),
    ),
    x.label
      ? s(
          "text",
          { class: "label", x: (box.left + box.right) / 2, y: box.bottom + 37, "text-anchor": "middle" },
          x.label,
        )
      : null,
    y.label
      ? s(
          "text",
          {
            class: "label",
            transform: `translate(14 ${(box.top + box.bottom) / 2}) rotate(-90)`,
            "text-anchor": "middle",
          },
          y.label,
        )
      : null,
  );
}

function rectangle(bar, xs, ys) {
  const [x0, x1] = [xs.at(bar.x0), xs.at(bar.x1)].sort((a, b) => a - b);
  const [y0, y1] = [ys.at(bar.y0), ys.at(bar.y1)].sort((a, b) => a - b);
  const inset = bar.inset || 0;
  const round = bar.round || 0;
  return s("rect", {
    class: bar.class || null,
    x: x0 + inset,
    y: y0,
    width: Math.max(x1 - x0 - 2 * inset, 0.5),
    height: Math.max(y1 - y0, 0),
    rx: round,
    style: bar.fill ? `fill:${bar.fill}` : null,
  });
}

function guide({ from, to, class: name, colour }, xs, ys) {
  return s("line", {
    class: name || "guide",
    x1: xs.at(from[0]),
    y1: ys.at(from[1]),
    x2: xs.at(to[0]),
    y2: ys.at(to[1]),
    style: colour ? `stroke:${colour}` : null,
  });
}

function drawSeries(one, xs, ys, box) {
  const colour = one.colour || runColour(one.run);
  const points = one.points.filter(([x, y]) => isNumber(x) && isNumber(y) && (!xs.log || x > 0) && (!ys.log || y > 0));
  const at = points.map(([x, y]) => [xs.at(x), ys.at(y)]);
  const parts = [];
  if (at.length && one.line !== false) {
    const path = at
      .map(([x, y], i) =>
        i
          ? one.step
            ? `H${x.toFixed(1)}V${y.toFixed(1)}`
            : `L${x.toFixed(1)} ${y.toFixed(1)}`
          : `M${x.toFixed(1)} ${y.toFixed(1)}`,
      )
      .join("");
    if (one.area)
      parts.push(
        s("path", { class: "area", d: `${path}V${box.bottom}H${at[0][0].toFixed(1)}Z`, style: `fill:${colour}` }),
      );
    parts.push(
      s("path", {
        class: "line",
        d: path,
        "stroke-dasharray": one.dash ?? (one.run === undefined ? null : runDash(one.run)),
        style: `stroke:${colour}`,
      }),
    );
  }
  const radius = one.radius || 3;
  if (one.dots)
    parts.push(...at.map(([x, y]) => s("circle", { class: "dot", cx: x, cy: y, r: radius, style: `fill:${colour}` })));
  return s("g", { class: "series", "data-run": one.run }, parts);
}

/** Names beside points, each where it covers no point and no other name; one without such a place is left to the tip. */
function pointLabels(labels, xs, ys, box) {
  const taken = labels.map(({ x, y }) => [xs.at(x) - 7, ys.at(y) - 7, xs.at(x) + 7, ys.at(y) + 7]);
  const places = [
    ["start", 10, 4],
    ["end", -10, 4],
    ["middle", 0, -12],
    ["middle", 0, 20],
    ["start", 8, -10],
    ["end", -8, -10],
    ["start", 8, 18],
    ["end", -8, 18],
  ];
  return labels.map(({ x, y, text, run }, own) => {
    const width = 6.5 * text.length;
    for (const [anchor, dx, dy] of places) {
      const [px, py] = [xs.at(x) + dx, ys.at(y) + dy];
      const left = px - { start: 0, middle: width / 2, end: width }[anchor];
      const area = [left, py - 11, left + width, py + 3];
      const free = taken.every(
        (other, i) => i === own || area[0] > other[2] || area[2] < other[0] || area[1] > other[3] || area[3] < other[1],
      );
      if (!free || area[0] < box.left || area[2] > box.right || area[1] < 0 || area[3] > box.bottom) continue;
      taken.push(area);
      return s("text", { class: "mark", "data-run": run, x: px, y: py, "text-anchor": anchor }, text);
    }
    return null;
  });
}

/** Shows the nearest value under the pointer, and walks from value to value with the arrow keys. */
function listen(root, ring, hits, xs, ys, nearest = "both") {
  let current = -1;
  const place = (hit) => [xs.at(hit.x), ys.at(hit.y)];
  const select = (index, clientX, clientY) => {
    current = index;
    const hit = hits[index];
    const [px, py] = place(hit);
    fill(
      ring,
      {
        cx: px,
        cy: py,
        visibility: "visible",
        style: `stroke:${hit.run === undefined || hit.run === null ? "var(--accent)" : runColour(hit.run)}`,
      },
      [],
    );
    const frame = root.getBoundingClientRect();
    const zoom = frame.width / root.viewBox.baseVal.width || 1;
    tip.show(hit.lines, clientX ?? frame.left + px * zoom, clientY ?? frame.top + py * zoom, hit.run);
  };
  const leave = () => {
    current = -1;
    ring.setAttribute("visibility", "hidden");
    tip.hide();
  };
  root.addEventListener("pointermove", (event) => {
    const frame = root.getBoundingClientRect();
    const zoom = frame.width / root.viewBox.baseVal.width || 1;
    const [mx, my] = [(event.clientX - frame.left) / zoom, (event.clientY - frame.top) / zoom];
    let best = -1;
    let least = nearest === "both" ? 60 ** 2 : Infinity;
    hits.forEach((hit, index) => {
      const [px, py] = place(hit);
      const far = (nearest === "y" ? 0 : (px - mx) ** 2) + (nearest === "x" ? 0 : (py - my) ** 2);
      if (far < least) [best, least] = [index, far];
    });
    if (best >= 0) select(best, event.clientX, event.clientY);
    else leave();
  });
  root.addEventListener("pointerleave", leave);
  root.addEventListener("blur", leave);
  root.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") leave();
    if (!step) return;
    event.preventDefault();
    select((Math.max(current, step > 0 ? -1 : 0) + step + hits.length) % hits.length);
    say(hits[current].lines.join(", "));
  });
}

/** The numbers behind a chart. */
function numbersOf(options) {
  const table = options.table || tableOfSeries(options);
  return table && table.rows.length ? foldedTable(options.tableTitle || "Numbers", table) : null;
}

function tableOfSeries({ x, y, series = [] }) {
  const rows = series.flatMap((one) =>
    one.points.map((point) => [one.name, write(x.kind || "short", point[0]), write(y.kind || "number", point[1])]),
  );
  return { heads: ["series", x.label || "x", y.label || "y"], rows };
}

function foldedTable(title, { heads, rows }) {
  const details = h("details", {}, h("summary", {}, title));
  // Filled when it is opened: a page with a hundred charts would otherwise carry a hundred hidden tables.
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(plainTable(heads, rows));
  });
  return details;
}

function plainTable(heads, rows, label) {
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": label || heads.join(", ") },
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          heads.map((head) => h("th", { scope: "col" }, head)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h(
            "tr",
            {},
            row.map((cell, i) => (i ? h("td", {}, cell) : h("th", { scope: "row" }, cell))),
          ),
        ),
      ),
    ),
  );
}
