"use strict";
// Readouts on the charts, and pictures on the maps. All data is read as JSON; all text is set as text.
(function () {
  const place = function (svg, event) {
    const matrix = svg.getScreenCTM();
    return matrix ? new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse()) : null;
  };
  const brief = function (value) { return Number(value.toPrecision(4)).toString(); };

  document.querySelectorAll(".chart").forEach(function (chart) {
    const series = JSON.parse(chart.dataset.series), svg = chart.querySelector("svg");
    const cursor = chart.querySelector(".cursor"), readout = chart.querySelector(".readout");
    const leave = function () {
      readout.textContent = "";
      cursor.setAttribute("x1", -9);
      cursor.setAttribute("x2", -9);
    };
    svg.addEventListener("pointermove", function (event) {
      const at = place(svg, event);
      if (!at) return;
      let where = null;
      const told = series.filter(function (s) { return s[1].length; }).map(function (s) {
        const near = s[1].reduce(function (a, b) { return Math.abs(b[0] - at.x) < Math.abs(a[0] - at.x) ? b : a; });
        where = where || near;
        return brief(near[3]);
      });
      if (!where) return;
      cursor.setAttribute("x1", where[0]);
      cursor.setAttribute("x2", where[0]);
      readout.textContent = "epoch " + brief(where[2]) + ": " + told.join(" · ");
    });
    svg.addEventListener("pointerleave", leave);
  });

  // What is folded away would not be printed.
  let opened = [];
  addEventListener("beforeprint", function () {
    opened = Array.from(document.querySelectorAll("details:not([open])"));
    opened.forEach(function (details) { details.open = true; });
  });
  addEventListener("afterprint", function () { opened.forEach(function (details) { details.open = false; }); });

  const tip = document.getElementById("tip");
  document.querySelectorAll(".map").forEach(function (map) {
    const data = JSON.parse(document.getElementById(map.dataset.source).textContent);
    const svg = map.querySelector("svg"), ring = map.querySelector(".ring");
    const sheet = map.querySelector("img"), canvas = tip.querySelector("canvas"), word = tip.querySelector("span");
    const only = new Set();
    const hide = function () { tip.hidden = true; ring.setAttribute("r", 0); };
    const show = function (event) {
      const at = place(svg, event);
      if (!at) return;
      let best = -1, nearest = 40 * 40;
      data.x.forEach(function (x, i) {
        if (only.size && !only.has(data.label[i])) return;
        const d = (x - at.x) * (x - at.x) + (data.y[i] - at.y) * (data.y[i] - at.y);
        if (d < nearest) { nearest = d; best = i; }
      });
      if (best < 0) { hide(); return; }
      ring.setAttribute("cx", data.x[best]);
      ring.setAttribute("cy", data.y[best]);
      ring.setAttribute("r", 7);
      const pen = canvas.getContext("2d"), w = data.width, h = data.height;
      pen.imageSmoothingEnabled = w > 60;
      pen.clearRect(0, 0, canvas.width, canvas.height);
      const side = Math.max(w, h), u = canvas.width / side;
      pen.drawImage(sheet, (best % data.columns) * w, Math.floor(best / data.columns) * h, w, h,
        (side - w) * u / 2, (side - h) * u / 2, w * u, h * u);
      word.textContent = data.names[data.label[best]] || "";
      tip.dataset.picture = best;
      tip.hidden = false;
      const box = tip.getBoundingClientRect();
      const left = event.clientX + 16 + box.width > innerWidth ? event.clientX - box.width - 16 : event.clientX + 16;
      const top = Math.min(Math.max(8, event.clientY - box.height / 2), innerHeight - box.height - 8);
      tip.style.left = Math.max(8, left) + "px";
      tip.style.top = top + "px";
    };
    svg.addEventListener("pointermove", show);
    svg.addEventListener("pointerdown", show);
    svg.addEventListener("pointerleave", function (event) { if (event.pointerType === "mouse") hide(); });
    document.addEventListener("scroll", hide, { passive: true });
    document.addEventListener("pointerdown", function (event) { if (!event.target.closest(".map")) hide(); });
    map.parentElement.querySelectorAll(".legend button").forEach(function (button) {
      button.addEventListener("click", function () {
        const c = Number(button.dataset.label), on = !only.has(c);
        if (on) only.add(c); else only.delete(c);
        button.setAttribute("aria-pressed", String(on));
        svg.querySelectorAll("g[data-label]").forEach(function (g) {
          g.classList.toggle("off", only.size > 0 && !only.has(Number(g.dataset.label)));
        });
        hide();
      });
    });
  });
})();
