/** All that is shown, and where we are in it. What changes it calls `changed`; what draws it is in `drawers`. */
const page = {
  runs: [],
  times: new Float64Array(), // of all events of all runs, in their order
  whose: new Uint8Array(), // the number of its run
  which: new Int32Array(), // its number in the run
  counts: [], // by run: how many of the first p events are its own
  walk: new Int32Array(), // the events in the order in which "next" goes through them
  place: new Int32Array(), // of each event in that order
  start: 0,
  end: 1,
  view: [0, 1], // from when to when
  t: 0,
  passed: 0, // so many events have begun
  follow: -1, // the rank that is stepped through, -1: all
  playing: false,
  drawn: { frames: 0, bars: 0, arrows: 0 }, // in the last frame; frames since the start
};

/** Who draws: `view` when the view has changed, `moment` when the time or the event has. */
const drawers = { view: [], moment: [] };
const due = new Set();

/** Have everything drawn, in the next frame, that depends on "view" or "moment". */
function changed(...what) {
  if (!due.size) requestAnimationFrame(draw);
  for (const one of what) due.add(one);
}

function draw() {
  if (due.has("view")) due.add("moment");
  const now = ["view", "moment"].filter((what) => due.has(what));
  due.clear();
  page.drawn.frames += 1;
  for (const what of now) for (const drawer of drawers[what]) drawer();
}

/** Put the events of all runs into one order. */
function merge(runs) {
  page.runs = runs;
  const size = d3.sum(runs, (run) => run.size);
  page.times = new Float64Array(size);
  page.whose = new Uint8Array(size);
  page.which = new Int32Array(size);
  page.counts = runs.map(() => new Int32Array(size + 1));
  const next = runs.map(() => 0);
  for (let p = 0; p < size; p++) {
    let first = -1;
    runs.forEach((run, r) => {
      if (next[r] < run.size && (first < 0 || run.t0[next[r]] < runs[first].t0[next[first]])) first = r;
    });
    page.whose[p] = first;
    page.which[p] = next[first];
    page.times[p] = runs[first].t0[next[first]];
    next[first] += 1;
    runs.forEach((run, r) => { page.counts[r][p + 1] = next[r]; });
  }
  page.walk = walkThrough(runs);
  page.place = new Int32Array(size);
  page.walk.forEach((p, k) => { page.place[p] = k; });
  page.start = page.times[0] ?? 0;
  page.end = Math.max(d3.max(runs, (run) => run.end), page.start + 1e-9);
}

/** Return all events step after step where a run's workers keep step, although some are ahead; else by their times. */
function walkThrough(runs) {
  const after = new Float64Array(page.times.length); // when an event comes, if none comes before those of earlier steps
  for (const run of runs) {
    const own = d3.range(run.size);
    if (run.inStep) own.sort((i, j) => run.stepOf[i] - run.stepOf[j] || i - j);
    const p = d3.range(page.times.length).filter((one) => page.whose[one] === run.number);
    let last = -Infinity;
    run.order = new Int32Array(run.size);
    own.forEach((i, k) => {
      last = Math.max(last, run.t0[i]);
      after[p[i]] = last;
      run.order[i] = k;
    });
  }
  const order = (p) => page.runs[page.whose[p]].order[page.which[p]];
  return Int32Array.from(d3.range(page.times.length)).sort((p, q) => (
    after[p] - after[q] || page.whose[p] - page.whose[q] || order(p) - order(q)
  ));
}

/** The last event that has begun, [run, its number there]; of the rank that is followed. Null: none has. */
function current() {
  for (let p = page.passed - 1; p >= 0; p--) if (isFollowed(p)) return at(p);
  return null;
}

/** The event of a run that is told: the current one, or, of another run, its last that has begun; -1 if none has. */
function toldOf(run) {
  const [whose, i] = current() ?? [];
  if (whose === run) return i;
  for (let k = passedOf(run) - 1; k >= 0; k--) if (page.follow < 0 || run.rank[k] === page.follow) return k;
  return -1;
}

function at(p) { return [page.runs[page.whose[p]], page.which[p]]; }

function isFollowed(p) {
  const [run, i] = at(p);
  return page.follow < 0 || run.rank[i] === page.follow;
}

/** How many events of a run have begun. */
function passedOf(run) { return page.counts[run.number][page.passed]; }

/** Go to a time. */
function goTo(t) {
  page.t = Math.min(page.end, Math.max(page.start, t));
  page.passed = d3.bisectRight(page.times, page.t);
  changed("moment");
}

/** Go to the p-th event, from 0: it is the last that has begun. */
function goToEvent(p) {
  page.passed = p + 1;
  page.t = page.times[p];
  showMoment();
  changed("moment");
}

/** Go to an event of a run. */
function select(run, i) {
  goToEvent(d3.bisectLeft(page.counts[run.number], i + 1) - 1);
}

/** How many events have been told, when the current one is. */
function told() { return page.passed ? page.place[page.passed - 1] + 1 : 0; }

/** Go to the next event (by 1) or the one before (by -1) for which `holds`, of the rank that is followed. */
function step(by, holds = () => true) {
  for (let k = told() - 1 + by; k >= 0 && k < page.walk.length; k += by) {
    const p = page.walk[k];
    if (isFollowed(p) && holds(...at(p))) {
      goToEvent(p);
      return true;
    }
  }
  return false;
}

/** Show the time from a to b, as far as it belongs to the runs. */
function look(a, b) {
  const whole = page.end - page.start, width = Math.min(whole, Math.max(b - a, whole * 1e-7, 1e-8));
  const from = Math.min(Math.max(a, page.start), page.end - width);
  page.view = [from, from + width];
  changed("view");
}

/** Zoom by a factor around a time. */
function zoom(factor, t = page.t) {
  const [a, b] = page.view, centre = Math.min(b, Math.max(a, t));
  look(centre - (centre - a) / factor, centre + (b - centre) / factor);
}

/** Move the view if the moment is not in it. */
function showMoment() {
  const [a, b] = page.view;
  if (page.t < a || page.t > b) look(page.t - (b - a) / 2, page.t + (b - a) / 2);
}
