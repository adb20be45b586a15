/** Below the lanes, on the same time: the version of x where it is kept, and the staleness of what was applied to it. */
const STRIPS = [
  { height: 56, draw: drawVersions },
  { height: 74, draw: drawStaleness },
];

/** The updates of a run in view, as [from, to) of run.applied; from the one before, so that a line begins. */
function appliedInView(run) {
  const starts = run.appliedAt;
  return [Math.max(0, d3.bisectLeft(starts, page.view[0]) - 1), d3.bisectRight(starts, page.view[1])];
}

function frame(pen, lanes, top, height, name, unit) {
  pen.fillStyle = colour("line");
  pen.fillRect(LEFT, top + height - 8, lanes.width - LEFT - RIGHT, 1);
  pen.textAlign = "right";
  pen.fillStyle = colour("ink");
  pen.fillText(name, LEFT - 10, top + height / 2 - 11);
  pen.fillStyle = colour("muted");
  pen.fillText(unit, LEFT - 10, top + height / 2 + 4);
}

/** Draw the version as a staircase, one for each rank that keeps x; number the stairs where there is room. */
function drawVersions(pen, lanes, top) {
  const { run, x } = lanes, [from, to] = appliedInView(run), { height } = STRIPS[0];
  frame(pen, lanes, top, height, "version", "of x");
  const inView = run.applied.slice(from, to);
  if (!inView.length) return;
  const least = d3.min(inView, (i) => run.version_applied[i]), most = d3.max(inView, (i) => run.version_applied[i]) + 1;
  const y = d3.scaleLinear([least, most], [top + height - 14, top + 12]);
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, top, lanes.width - LEFT - RIGHT, height);
  pen.clip();
  pen.strokeStyle = colour("update");
  pen.lineWidth = 1.8;
  pen.textAlign = "center";
  for (const rank of new Set(inView.map((i) => run.rank[i]))) {
    const own = inView.filter((i) => run.rank[i] === rank);
    pen.beginPath();
    pen.moveTo(Math.min(LEFT, x(run.t0[own[0]])), y(run.version_applied[own[0]]));
    own.forEach((i, k) => {
      pen.lineTo(x(run.t0[i]), y(run.version_applied[i]));
      pen.lineTo(x(run.t0[i]), y(run.version_applied[i] + 1));
      const until = k + 1 < own.length ? x(run.t0[own[k + 1]]) : lanes.width - RIGHT;
      pen.lineTo(until, y(run.version_applied[i] + 1));
      const left = Math.max(LEFT, x(run.t0[i])), text = String(run.version_applied[i] + 1);
      if (until - left > pen.measureText(text).width + 8) {
        pen.fillStyle = colour("ink");
        const high = y(run.version_applied[i] + 1);
        pen.fillText(text, (left + until) / 2, high + (high < top + 26 ? 10 : -8));
      }
    });
    pen.stroke();
  }
  pen.restore();
}

/** Draw the staleness of each gradient as a pin, with the number of its worker where there is room; what was dropped
 * as a cross. */
function drawStaleness(pen, lanes, top) {
  const { run, x } = lanes, { height } = STRIPS[1], [from, to] = appliedInView(run);
  const most = Math.max(1, run.mostStale), y = d3.scaleLinear([0, most], [top + height - 8, top + 16]);
  frame(pen, lanes, top, height, "staleness", "versions");
  pen.save();
  pen.textAlign = "left";
  pen.fillStyle = colour("muted");
  for (const level of most > 1 ? [0, most] : [0, 1]) {
    pen.fillStyle = colour("line");
    pen.fillRect(LEFT, y(level), lanes.width - LEFT - RIGHT, 1);
    pen.fillStyle = colour("muted");
    pen.fillText(String(level), LEFT + 3, y(level) - 7);
  }
  pen.beginPath();
  pen.rect(LEFT, top, lanes.width - LEFT - RIGHT, height);
  pen.clip();
  const room = (x.range()[1] - x.range()[0]) / Math.max(1, to - from), drawn = new Set();
  pen.textAlign = "center";
  for (const i of run.applied.slice(from, to)) {
    const at = x(run.t0[i]), level = y(staleness(run, i)), spot = Math.round(at) * 1e5 + Math.round(level);
    if (drawn.has(spot)) continue;
    drawn.add(spot);
    pen.fillStyle = colour("backward");
    pen.fillRect(at - 0.5, level, 1, y(0) - level);
    pen.beginPath();
    pen.arc(at, level, room > 20 ? 8 : room > 6 ? 3 : 1.5, 0, 2 * Math.PI);
    pen.fill();
    if (room > 20) {
      pen.fillStyle = colour("on-backward");
      pen.fillText(String(run.peer[i]), at, level + 0.5);
    }
  }
  pen.strokeStyle = colour("communicate");
  pen.lineWidth = 2;
  for (const i of run.dropped) {
    const at = x(run.t0[i]), level = y(Math.min(most, staleness(run, i)));
    if (at < LEFT || at > lanes.width) continue;
    pen.beginPath();
    for (const side of [1, -1]) {
      pen.moveTo(at - 4, level - 4 * side);
      pen.lineTo(at + 4, level + 4 * side);
    }
    pen.stroke();
  }
  pen.restore();
}
