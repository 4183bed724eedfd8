// Plots of the last minutes on a canvas. One has a few series over the same moments; gaps in time stay gaps.
import { h, put, say } from "./dom.js";

const SPAN = 300_000; // milliseconds that a plot shows
const GAP = 12_000; // longer than that between two moments: nobody looked in between

/** The next number above that people count in. */
function nice(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const first = value / power;
  return (first <= 1 ? 1 : first <= 2 ? 2 : first <= 5 ? 5 : 10) * power;
}

export class Chart {
  /** `series`: names, the first one is the figure. `show(value)`: a value as text. `least`: the least that the axis reaches to. `colours`: of the series, as style.css names them. */
  constructor(title, series, show, { least = 0, unit = "", colours = ["accent", "calm", "deep"] } = {}) {
    this.colours = colours;
    this.series = series;
    this.show = show;
    this.least = least;
    this.unit = unit;
    this.points = [];
    this.hover = null;
    this.title = title;
    this.value = h("div", { class: "now", text: "–" });
    this.canvas = h("canvas", { role: "img", "aria-label": `${title}: nothing yet` });
    this.keys = series.map((name, at) => h("span", { class: colours[at], text: name }));
    this.legend = h("div", { class: "legend" }, ...(series.length > 1 ? this.keys : []));
    this.element = h("div", { class: "card chart" }, h("h2", { text: title }), this.value, this.canvas, this.legend);
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.canvas);
  }

  /** Show these: [moment, value of each series …], oldest first. `note`: beside the figure. */
  update(points, note = "") {
    this.points = points;
    this.note = note;
    this.draw();
  }

  point(x) {
    this.hover = x;
    this.draw();
  }

  draw() {
    const { canvas, points } = this;
    const width = canvas.clientWidth, height = canvas.clientHeight, ratio = devicePixelRatio || 1;
    if (!width || !height) return;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name).trim();
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const end = points.length ? points[points.length - 1][0] : 0;
    const shown = points.filter((point) => point[0] > end - SPAN);
    let most = this.least;
    for (const point of shown) for (let at = 1; at < point.length; at++) if (point[at] > most) most = point[at];
    const top = nice(most), bottom = height - 1.5, room = height - 14;
    const x = (moment) => width - ((end - moment) / SPAN) * width;
    const y = (value) => bottom - (value / top) * room;
    context.strokeStyle = colour("--line");
    context.lineWidth = 1;
    context.beginPath();
    for (const value of [0, top / 2, top]) {
      const at = Math.round(y(value)) + 0.5;
      context.moveTo(0, at);
      context.lineTo(width, at);
    }
    context.stroke();
    context.fillStyle = colour("--muted");
    context.font = `11px ${style.fontFamily}`;
    context.textBaseline = "bottom";
    context.fillText(this.show(top), 0, y(top) - 1);
    for (let at = this.series.length; at >= 1; at--) this.line(context, shown, at, x, y, colour(`--${this.colours[at - 1]}`), bottom);
    this.tell(shown, x, context, colour, bottom);
  }

  line(context, shown, at, x, y, colour, bottom) {
    context.strokeStyle = colour;
    context.lineWidth = at === 1 ? 1.75 : 1.25;
    context.lineJoin = "round";
    let begun = null, last = null;
    const area = () => {
      if (at !== 1 || begun === null || last === begun) return;
      context.lineTo(x(last), bottom);
      context.lineTo(x(begun), bottom);
      context.globalAlpha = 0.09;
      context.fillStyle = colour;
      context.fill();
      context.globalAlpha = 1;
    };
    const path = (draw) => {
      begun = last = null;
      context.beginPath();
      for (const point of shown) {
        const value = point[at];
        if (value === null || value === undefined) continue;
        if (last === null || point[0] - last > GAP) {
          if (draw === area && last !== null) { area(); context.beginPath(); }
          context.moveTo(x(point[0]), y(value));
          begun = point[0];
        } else context.lineTo(x(point[0]), y(value));
        last = point[0];
      }
      draw();
    };
    if (at === 1) path(area);
    path(() => context.stroke());
  }

  /** Write the figure: of the moment that is pointed at, else of the last. */
  tell(shown, x, context, colour, bottom) {
    let point = shown[shown.length - 1];
    let when = "";
    if (this.hover !== null && shown.length) {
      for (const one of shown) if (Math.abs(x(one[0]) - this.hover) < Math.abs(x(point[0]) - this.hover)) point = one;
      context.strokeStyle = colour("--strong");
      context.beginPath();
      context.moveTo(x(point[0]), 0);
      context.lineTo(x(point[0]), bottom);
      context.stroke();
      const ago = Math.round((shown[shown.length - 1][0] - point[0]) / 1000);
      when = ago ? `${ago} s ago` : "now";
    }
    const text = (at) => (point && point[at] !== null && point[at] !== undefined ? this.show(point[at]) : "–");
    const note = when || this.note || this.unit;
    const whole = `${text(1)} ${note}`;
    if (this.told !== whole) {
      this.told = whole;
      put(this.value, text(1), ...(note ? [h("small", { text: note })] : []));
    }
    this.keys.forEach((key, at) => say(key, at ? `${this.series[at]} ${text(at + 1)}` : this.series[at])); // the first is the figure
    const words = this.series.map((name, at) => `${name} ${text(at + 1)}`).join(", ");
    const label = `${this.title}: ${words}`;
    if (!when && canvasLabel(this.canvas) !== label) this.canvas.setAttribute("aria-label", label);
  }
}

const canvasLabel = (canvas) => canvas.getAttribute("aria-label");
