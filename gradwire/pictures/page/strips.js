/** Below the lanes, on the same time: the version of x where it is kept, and, if any was stale, of what was applied. */
const STRIPS = [
  { height: 56, draw: drawVersions, has: (run) => run.applied.length > 0 },
  { height: 74, draw: drawStaleness, has: (run) => run.mostStale > 0 || run.dropped.length > 0 },
  { height: 46, draw: drawStores, has: (run) => run.stores.size > 0 },
];

function clip(pen, lanes, top, height) {
  pen.beginPath();
  pen.rect(LEFT, top, lanes.width - LEFT - RIGHT, height);
  pen.clip();
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
  const { run, x } = lanes, { height } = STRIPS[0], [a, b] = page.view;
  frame(pen, lanes, top, height, "version", "of x");
  const stairs = run.updates.filter((own) => own.length).map((own) => {
    const from = Math.max(0, d3.bisectLeft(own.map((i) => run.t0[i]), a) - 1);
    return own.slice(from).filter((i) => run.t0[i] <= b);
  });
  const inView = stairs.flat(), version = (i) => run.version_applied[i];
  if (!inView.length) return;
  const y = d3.scaleLinear([d3.min(inView, version), d3.max(inView, version) + 1], [top + height - 14, top + 20]);
  pen.save();
  clip(pen, lanes, top, height);
  pen.strokeStyle = colour("update");
  pen.fillStyle = colour("ink");
  pen.lineWidth = 1.8;
  pen.textAlign = "center";
  for (const own of stairs) {
    pen.beginPath();
    own.forEach((i, k) => {
      const left = x(run.t0[i]), right = k + 1 < own.length ? x(run.t0[own[k + 1]]) : lanes.width - RIGHT;
      if (k === 0) pen.moveTo(Math.min(LEFT, left), y(version(i)));
      pen.lineTo(left, y(version(i)));
      pen.lineTo(left, y(version(i) + 1));
      pen.lineTo(right, y(version(i) + 1));
      const text = String(version(i) + 1), from = Math.max(LEFT, left);
      if (right - from > pen.measureText(text).width + 8) pen.fillText(text, (from + right) / 2, y(version(i) + 1) - 9);
    });
    pen.stroke();
  }
  pen.restore();
}

/** Return whether no other pin is where the number of the k-th would be. */
function isFree(pins, k) {
  for (const by of [-1, 1]) {
    for (let j = k + by; pins[j] && Math.abs(pins[j].at - pins[k].at) < 16; j += by) {
      if (Math.abs(pins[j].level - pins[k].level) < 16) return false;
    }
  }
  return true;
}

/** Draw the staleness of each gradient as a pin, with the number of its worker where there is room; what was dropped
 * as a cross. */
function drawStaleness(pen, lanes, top) {
  const { run, x } = lanes, { height } = STRIPS[1];
  const from = d3.bisectLeft(run.appliedAt, page.view[0]), to = d3.bisectRight(run.appliedAt, page.view[1]);
  const most = Math.max(1, run.mostStale), y = d3.scaleLinear([0, most], [top + height - 8, top + 16]);
  frame(pen, lanes, top, height, "staleness", "versions");
  pen.save();
  for (const level of most > 1 ? [0, most] : [0, 1]) {
    pen.fillStyle = colour("line");
    pen.fillRect(LEFT, y(level), lanes.width - LEFT - RIGHT, 1);
    pen.fillStyle = colour("muted");
    pen.fillText(String(level), LEFT - 3, y(level) - (level ? 5 : 0));
  }
  clip(pen, lanes, top, height);
  const room = (x.range()[1] - x.range()[0]) / Math.max(1, to - from), drawn = new Set();
  pen.textAlign = "center";
  const pins = run.applied.slice(from, to).map((i) => ({ i, at: x(run.t0[i]), level: y(staleness(run, i)) }));
  for (const [k, { i, at, level }] of pins.entries()) {
    const spot = Math.round(at) * 1e5 + Math.round(level), isNumbered = room > 20 && isFree(pins, k);
    if (drawn.has(spot)) continue;
    drawn.add(spot);
    pen.fillStyle = colour("backward");
    pen.fillRect(at - 0.5, level, 1, y(0) - level);
    pen.beginPath();
    pen.arc(at, level, isNumbered ? 8 : room > 6 ? 3 : 1.5, 0, 2 * Math.PI);
    pen.fill();
    if (isNumbered) {
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

/** Draw whose updates a shared x has since each store: a box each, with the rank; crossed out where it is just lost. */
function drawStores(pen, lanes, top) {
  const { run, x } = lanes, { height } = STRIPS[2], stores = [...run.stores];
  frame(pen, lanes, top, height, "x has the", "updates of");
  pen.save();
  clip(pen, lanes, top, height);
  pen.textAlign = "center";
  pen.lineWidth = 2.5;
  for (const [s, [i, { has, lost }]] of stores.entries()) {
    const next = x(s + 1 < stores.length ? run.t1[stores[s + 1][0]] : page.end), n = has.length + lost.length;
    const size = Math.max(3, Math.min(20, (next - x(run.t1[i])) / n - 2));
    [...has.slice(0, -1), ...lost, i].forEach((one, k) => {
      const left = x(run.t1[i]) + 2 + k * (size + 2), y = top + 8, isLost = lost.includes(one);
      pen.fillStyle = chunkColour(run.rank[one]);
      pen.globalAlpha = isLost ? 0.25 : 1;
      pen.fillRect(left, y, size, size);
      pen.globalAlpha = 1;
      pen.fillStyle = colour(isLost ? "ink" : "paper");
      if (size > 8) pen.fillText(String(run.rank[one]), left + size / 2, y + size / 2);
      pen.strokeStyle = colour("accent");
      if (isLost) for (const by of [0, size]) pen.stroke(new Path2D(`M${left} ${y + by}L${left + size} ${y + size - by}`));
    });
  }
  pen.restore();
}
