// Lines over the last minutes. Who cannot see them is told the newest and the highest value.
import { html, useEffect, useRef } from "./ui.js";
import { isNumber } from "./format.js";

const HEIGHT = 150;
const SECONDS_MIN = 120;

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function options(width, title, format, stroke, data) {
  const grid = { stroke: color("--line"), width: 1 };
  const axis = { stroke: color("--muted"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
  // Of one sample uPlot would show days.
  const range = () => {
    const to = data.current[0].at(-1) ?? Date.now() / 1000;
    return [Math.min(data.current[0][0] ?? to, to - SECONDS_MIN), to];
  };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false } },
    scales: {
      x: { time: true, range },
      y: { range: (_, low, high) => [0, Math.max(high || 0, 1) * 1.1] },
    },
    axes: [
      { ...axis, size: 32, space: 90, values: (_, splits) => splits.map((at) => new Date(at * 1000).toLocaleTimeString("en-GB")) },
      { ...axis, size: 62, space: 36, values: (_, splits) => splits.map(format) },
    ],
    series: [{}, { label: title, stroke: color(stroke), fill: color(`${stroke}-fill`), width: 2, points: { show: false }, spanGaps: true }],
  };
}

export function Chart({ title, times, values, format, stroke = "--accent" }) {
  const place = useRef(null);
  const plot = useRef(null);
  const data = [times, values];
  const latest = useRef(data);
  latest.current = data;
  useEffect(() => {
    const element = place.current;
    const draw = () => {
      plot.current?.destroy();
      plot.current = new window.uPlot(options(element.clientWidth || 300, title, format, stroke, latest), latest.current, element);
    };
    draw();
    const sizes = new ResizeObserver(() => plot.current.setSize({ width: element.clientWidth, height: HEIGHT }));
    sizes.observe(element);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", draw);
    return () => {
      sizes.disconnect();
      scheme.removeEventListener("change", draw);
      plot.current.destroy();
    };
  }, []);
  const newest = times.at(-1);
  useEffect(() => plot.current?.setData(data), [newest, times.length]);
  const known = values.filter(isNumber);
  const now = values.at(-1);
  const words = known.length ? `now ${format(now)}, at most ${format(Math.max(...known))}` : "nothing is known yet";
  return html`<figure class="chart">
    <figcaption>${title} <span class="quiet">${words}</span></figcaption>
    <div ref=${place} role="img" aria-label=${`${title} over the last minutes: ${words}`}></div>
  </figure>`;
}

export function Sparkline({ values, label }) {
  const known = values.slice(-60);
  const highest = Math.max(1e-9, ...known.filter(isNumber));
  const points = known
    .map((value, index) => (isNumber(value) ? `${(index / Math.max(1, known.length - 1)) * 78 + 1},${19 - (value / highest) * 17}` : null))
    .filter(Boolean);
  if (points.length < 2) return null;
  return html`<svg class="spark" viewBox="0 0 80 20" role="img" aria-label=${label}><polyline points=${points.join(" ")} /></svg>`;
}
