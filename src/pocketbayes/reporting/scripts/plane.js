"use strict";
// The plane of a weight-shared network: its Gaussians at (mean, std), to zoom into and to ask for their members.

function planeView(run, index) {
  const plane = run.weights.plane;
  const counts = plane.members.map((row) => row.reduce((sum, count) => sum + count, 0));
  const most = Math.max(...counts, 1);
  const members = h(
    "div",
    { class: "members", "aria-live": "polite" },
    h("p", { class: "hint" }, "Point at a Gaussian, or select one in the table, to see its members by layer."),
  );
  const canvas = h("div", { class: "canvas plane" });
  const home = planeDomain(plane);
  let view = { ...home };
  let chosen = -1;

  const show = (place) => {
    if (place === chosen) return;
    chosen = place;
    canvas
      .querySelectorAll(".gaussian")
      .forEach((node) => node.classList.toggle("chosen", Number(node.dataset.place) === place));
    if (place >= 0) members.replaceChildren(...membersOf(plane, place, counts[place]));
  };

  canvas.redraw = (width) => {
    canvas.drawnWidth = width;
    const height = Math.round(Math.min(Math.max(width * 0.62, 280), 520));
    const box = { left: 66, right: width - 12, top: 10, bottom: height - 44 };
    const xs = scale([view.x0, view.x1], [box.left, box.right]);
    const ys = scale([view.y0, view.y1], [box.bottom, box.top]);
    const sx = (box.right - box.left) / (view.x1 - view.x0);
    const sy = (box.bottom - box.top) / (view.y1 - view.y0);
    const clip = `plane-${index}`;
    // Thousands of Gaussians are drawn in thin lines, fuller as one zooms in.
    const zoomed = (home.x1 - home.x0) / (view.x1 - view.x0);
    canvas.style.setProperty("--fine", Math.min(1, Math.sqrt(80 / counts.length) * zoomed).toFixed(3));
    // Shapes are in units of the plane; lines and dots keep their width on the screen at every zoom.
    const world = `matrix(${sx} 0 0 ${-sy} ${xs.at(0)} ${ys.at(0)})`;
    const order = counts.map((_, i) => i).sort((a, b) => size(plane.gaussians[b]) - size(plane.gaussians[a]));
    canvas.replaceChildren(
      s(
        "svg",
        {
          viewBox: `0 0 ${width} ${height}`,
          width,
          height,
          tabindex: 0,
          role: "img",
          "aria-label": `Plane of ${plane.counts.gaussians} Gaussians, ${plane.counts.outliers} outliers. Arrow keys move, plus and minus zoom, 0 shows all. The table lists the Gaussians.`,
          keydown: onKey,
          wheel: onWheel,
          pointerdown: onGrab,
        },
        s(
          "defs",
          {},
          s(
            "clipPath",
            { id: clip },
            s("rect", { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top }),
          ),
        ),
        axes({ label: "mean" }, { label: "std" }, xs, ys, box),
        s("rect", {
          class: "glass",
          x: box.left,
          y: box.top,
          width: box.right - box.left,
          height: box.bottom - box.top,
        }),
        s(
          "g",
          { "clip-path": `url(#${clip})` },
          s(
            "g",
            { transform: world },
            s("path", { class: "outliers", d: plane.outliers.map(([m, std]) => `M${m} ${std}h0`).join("") }),
            order.map((place) => gaussian(plane.gaussians[place], place, counts[place] / most)),
          ),
        ),
      ),
    );
    if (chosen >= 0)
      canvas.querySelectorAll(`.gaussian[data-place="${chosen}"]`).forEach((node) => node.classList.add("chosen"));
  };

  const gaussian = ([mean, std, a, b, c], place, share) =>
    s(
      "g",
      {
        class: "gaussian",
        "data-place": place,
        style: `--share:${(0.12 + 0.6 * Math.sqrt(share)).toFixed(3)}`,
        pointerenter: (event) => {
          show(place);
          tip.show(gaussianLines(plane, place, counts[place]), event.clientX, event.clientY, index);
        },
        pointermove: (event) =>
          tip.show(gaussianLines(plane, place, counts[place]), event.clientX, event.clientY, index),
        pointerleave: () => tip.hide(),
      },
      s("circle", { class: "two", r: 2, transform: `matrix(${a} ${b} 0 ${c} ${mean} ${std})` }),
      s("circle", { class: "one", r: 1, transform: `matrix(${a} ${b} 0 ${c} ${mean} ${std})` }),
      s("path", { class: "centre", d: `M${mean} ${std}h0` }),
    );

  const redraw = () => canvas.redraw(canvas.drawnWidth);
  const zoom = (factor, cx = (view.x0 + view.x1) / 2, cy = (view.y0 + view.y1) / 2) => {
    if ((view.x1 - view.x0) * factor < (home.x1 - home.x0) * 1e-4) return;
    if ((view.x1 - view.x0) * factor > (home.x1 - home.x0) * 4) return;
    view = {
      x0: cx + (view.x0 - cx) * factor,
      x1: cx + (view.x1 - cx) * factor,
      y0: cy + (view.y0 - cy) * factor,
      y1: cy + (view.y1 - cy) * factor,
    };
    redraw();
  };
  const move = (dx, dy) => {
    const [w, t] = [view.x1 - view.x0, view.y1 - view.y0];
    view = { x0: view.x0 + dx * w, x1: view.x1 + dx * w, y0: view.y0 + dy * t, y1: view.y1 + dy * t };
    redraw();
  };
  const reset = () => {
    view = { ...home };
    redraw();
  };
  const where = (event) => {
    const frame = canvas.firstChild.getBoundingClientRect();
    return [
      view.x0 + ((event.clientX - frame.left - 66) / (frame.width - 78)) * (view.x1 - view.x0),
      view.y1 - ((event.clientY - frame.top - 10) / (frame.height - 54)) * (view.y1 - view.y0),
    ];
  };

  function onKey(event) {
    const keep = document.activeElement === canvas.firstChild;
    const act = {
      "+": () => zoom(1 / 1.4),
      "=": () => zoom(1 / 1.4),
      "-": () => zoom(1.4),
      0: reset,
      ArrowLeft: () => move(-0.1, 0),
      ArrowRight: () => move(0.1, 0),
      ArrowUp: () => move(0, 0.1),
      ArrowDown: () => move(0, -0.1),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
    if (keep) canvas.firstChild.focus();
  }
  function onWheel(event) {
    // The wheel scrolls the page as everywhere; with Ctrl, as a pinch on a touchpad sends it, it zooms.
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, ...where(event));
  }
  function onGrab(event) {
    if (event.pointerType === "touch" || event.button !== 0) return;
    let last = where(event);
    const drag = (next) => {
      const now = where(next);
      move((last[0] - now[0]) / (view.x1 - view.x0), (last[1] - now[1]) / (view.y1 - view.y0));
      last = where(next);
    };
    const drop = () => {
      removeEventListener("pointermove", drag);
      removeEventListener("pointerup", drop);
    };
    addEventListener("pointermove", drag);
    addEventListener("pointerup", drop);
  }

  canvas.redraw(640);
  sizes.observe(canvas);
  const tools = h(
    "div",
    { class: "tools" },
    h("button", { type: "button", click: () => zoom(1 / 1.5), "aria-label": "Zoom in" }, "+"),
    h("button", { type: "button", click: () => zoom(1.5), "aria-label": "Zoom out" }, "−"),
    h("button", { type: "button", click: reset }, "Show all"),
    h("span", { class: "hint" }, "drag to move, Ctrl + wheel to zoom"),
  );
  const { gaussians, outliers, blends } = plane.counts;
  const about = `${write("count", gaussians)} Gaussians, ${write("count", outliers)} outliers with their own mean and std (dots), ${write("count", blends)} weights blended from several Gaussians. Ellipses show one and two standard deviations; darker ones have more members`;
  const drawn =
    gaussians > plane.gaussians.length
      ? ` The ${write("count", plane.gaussians.length)} with the most members are drawn.`
      : "";
  return h(
    "div",
    { class: "split" },
    h(
      "figure",
      { class: "chart wide" },
      h("figcaption", {}, h("strong", {}, run.name), h("span", {}, about + "." + drawn)),
      tools,
      canvas,
    ),
    h("div", { class: "card side" }, members, gaussianTable(plane, counts, show)),
  );
}

const size = ([, , a, , c]) => a * c;

function planeDomain(plane) {
  const xs = plane.gaussians.flatMap(([m, , a]) => [m - 2 * a, m + 2 * a]).concat(plane.outliers.map(([m]) => m));
  const ys = plane.gaussians
    .flatMap(([, std, , b, c]) => [std - 2 * Math.hypot(b, c), std + 2 * Math.hypot(b, c)])
    .concat(plane.outliers.map(([, std]) => std));
  const [x0, x1] = domainOf(xs, { air: 0.03 });
  const [y0, y1] = domainOf(ys, { air: 0.03 });
  return { x0, x1, y0, y1 };
}

function gaussianLines(plane, place, count) {
  const [mean, std] = plane.gaussians[place];
  return [
    `Gaussian ${place + 1}`,
    `${write("count", Math.round(count))} weights`,
    `mean ${write("short", mean)}, std ${write("short", std)}`,
    `std of a drawn weight ${write("short", plane.drawn_stds[place])}`,
  ];
}

function membersOf(plane, place, count) {
  const rows = plane.members[place]
    .map((n, i) => [plane.layers[i], n])
    .filter(([, n]) => n > 0)
    .sort((a, b) => b[1] - a[1]);
  const [title, ...rest] = gaussianLines(plane, place, count);
  return [
    h("h3", {}, title),
    h("p", {}, rest.join(" · ")),
    h(
      "ul",
      { class: "bars" },
      rows.map(([layer, n]) =>
        h(
          "li",
          {},
          h("span", {}, layer),
          meter(n / Math.max(...rows.map((r) => r[1]))),
          h("b", {}, write("count", +n.toFixed(1))),
        ),
      ),
    ),
  ];
}

function gaussianTable(plane, counts, show) {
  const rows = counts.slice(0, 100).map((count, place) => {
    const [mean, std] = plane.gaussians[place];
    const button = h(
      "button",
      { type: "button", class: "link", click: () => show(place), focus: () => show(place) },
      `Gaussian ${place + 1}`,
    );
    return h(
      "tr",
      { pointerenter: () => show(place) },
      h("th", { scope: "row" }, button),
      h("td", {}, write("count", Math.round(count))),
      h("td", {}, write("short", mean)),
      h("td", {}, write("short", std)),
      h("td", {}, write("short", plane.drawn_stds[place])),
    );
  });
  const heads = ["", "weights", "mean", "std", "drawn std"].map((head) =>
    h("th", { scope: "col" }, head || h("span", { class: "unseen" }, "Gaussian")),
  );
  return h(
    "div",
    { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Gaussians with the most members" },
    h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows)),
  );
}

/** A bar of a fraction. */
function meter(fraction, colour) {
  const bar = h("i", { class: "meter", "aria-hidden": "true" }, h("i", {}));
  bar.firstChild.style.width = `${(100 * Math.min(Math.max(fraction, 0), 1)).toFixed(2)}%`;
  if (colour) bar.firstChild.style.background = colour;
  return bar;
}
