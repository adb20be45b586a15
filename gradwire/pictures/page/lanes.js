const LEFT = 96, RIGHT = 10, TOP = 32; // of a canvas, in pixels: names, air, the axis of time
const NEAR = 7; // pixels from a message at which it is meant
const MANY = 1500, SOME = 300, FEW = 80; // arrows in view: thin ones, those with heads, those with a label

/** The lanes of one run: a bar for every event, an arrow for every message, and below them the strips of its server. */
class Lanes {
  constructor(run, box) {
    this.run = run;
    this.box = box;
    this.canvas = box.querySelector(".events");
    this.above = box.querySelector(".cursor");
    this.lane = Math.max(13, Math.min(page.runs.length > 1 ? 46 : 58, Math.floor(420 / run.ranks)));
    this.bar = Math.round(0.5 * this.lane);
    this.strips = STRIPS.filter((strip) => strip.has(run));
    this.height = TOP + this.lane * run.ranks + 6 + d3.sum(this.strips, (strip) => strip.height);
    this.zooming = d3.zoom()
      .filter((event) => !event.button && (event.type !== "wheel" || event.ctrlKey || event.metaKey))
      .on("zoom", (event) => { if (event.sourceEvent) look(...event.transform.rescaleX(this.whole).domain()); });
    d3.select(this.above).call(this.zooming).on("dblclick.zoom", null)
      .on("click", (event) => this.pick(...d3.pointer(event)))
      .on("pointermove", (event) => this.hint(...d3.pointer(event)));
    this.resize();
    drawers.view.push(() => this.drawEvents());
    drawers.moment.push(() => this.drawMoment());
  }

  resize() {
    this.width = Math.max(320, this.box.clientWidth);
    for (const canvas of [this.canvas, this.above]) {
      canvas.width = Math.round(this.width * devicePixelRatio);
      canvas.height = Math.round(this.height * devicePixelRatio);
      canvas.style.height = `${this.height}px`;
    }
    this.box.style.height = `${this.height}px`;
    this.whole = d3.scaleLinear([page.start, page.end], [LEFT, this.width - RIGHT]);
    this.zooming.extent([[LEFT, 0], [this.width - RIGHT, this.height]])
      .translateExtent([[LEFT, 0], [this.width - RIGHT, this.height]]).scaleExtent([1, 1e9]);
  }

  /** Begin a drawing; x maps time to pixels. */
  begin(canvas) {
    this.x = d3.scaleLinear(page.view, [LEFT, this.width - RIGHT]);
    const pen = canvas.getContext("2d");
    pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    pen.textBaseline = "middle";
    return pen;
  }

  y(rank) { return TOP + this.lane * (rank + 0.5); }

  drawEvents() {
    const pen = this.begin(this.canvas), [a, b] = page.view, { run } = this;
    const k = (page.end - page.start) / (b - a);
    this.above.__zoom = d3.zoomIdentity.translate(LEFT - k * this.whole(a), 0).scale(k);
    this.drawAxis(pen);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, this.width - LEFT - RIGHT, this.height);
    pen.clip();
    this.labels = [];
    page.drawn.bars = run.number ? page.drawn.bars : 0;
    for (let rank = 0; rank < run.ranks; rank++) page.drawn.bars += this.drawBars(pen, rank);
    drawLost(pen, this);
    page.drawn.arrows = (run.number ? page.drawn.arrows : 0) + this.drawArrows(pen);
    pen.restore();
    let top = TOP + this.lane * run.ranks + 6;
    for (const strip of this.strips) {
      strip.draw(pen, this, top);
      top += strip.height;
    }
    const name = page.runs.length > 1 ? ` of ${run.facts.name}` : "";
    this.canvas.ariaLabel = `Lanes of ${run.ranks} ranks${name} from ${inWords(a, b - a)} to ${inWords(b, b - a)}: ` +
      `${this.shown.length} messages. The table of messages below has them as text.`;
  }

  drawAxis(pen) {
    const [a, b] = page.view, { run } = this;
    pen.font = FONT;
    pen.textAlign = "center";
    const ticks = this.x.ticks(Math.max(2, this.width / 120)), apart = ticks.length > 1 ? ticks[1] - ticks[0] : b - a;
    for (const tick of ticks) {
      const x = Math.round(this.x(tick)) + 0.5;
      pen.fillStyle = colour("line");
      pen.fillRect(x, TOP - 4, 1, this.height - TOP);
      pen.fillStyle = colour("muted");
      const text = inWords(tick, b - a, apart), half = pen.measureText(text).width / 2;
      if (x + half < this.width) pen.fillText(text, x, 9);
    }
    pen.textAlign = "right";
    for (let rank = 0; rank < run.ranks; rank++) {
      const role = run.facts.roles[rank], y = this.y(rank), both = this.lane >= 30;
      pen.fillStyle = colour(page.follow === rank ? "accent" : "ink");
      if (this.lane >= 12) pen.fillText(`rank ${rank}`, LEFT - 10, both ? y - 7 : y);
      pen.fillStyle = colour("muted");
      if (both) pen.fillText(role, LEFT - 10, y + 8);
    }
  }

  /** Draw the events of a rank in view; those narrower than a pixel together, as the one that took the most time. */
  drawBars(pen, rank) {
    const { run } = this, { events, intervals } = run.lanes[rank];
    const [from, to] = intervals.overlapping(...page.view);
    const top = this.y(rank) - this.bar / 2, shares = new Float64Array(run.phases.length);
    let pixel = NaN, drawn = 0;
    const flush = () => {
      if (Number.isNaN(pixel)) return;
      pen.fillStyle = colour(run.phases[d3.maxIndex(shares)]);
      pen.fillRect(pixel, top, 1.5, this.bar);
      shares.fill(0);
      pixel = NaN;
      drawn += 1;
    };
    for (let k = from; k < to; k++) {
      const i = events[k], x0 = this.x(run.t0[i]), x1 = this.x(run.t1[i]);
      if (x1 - x0 < 1) {
        if (Math.floor(x0) !== pixel) flush();
        pixel = Math.floor(x0);
        shares[run.phase[i]] += x1 - x0 + 1e-6; // what takes no time counts a little
        continue;
      }
      flush();
      const phase = run.phaseOf(i), left = Math.max(x0, LEFT - 2), right = Math.min(x1, this.width);
      pen.fillStyle = colour(phase);
      pen.fillRect(left, top, right - left, this.bar);
      drawn += 1;
      this.labelBar(pen, i, phase, left, right);
    }
    flush();
    return drawn;
  }

  labelBar(pen, i, phase, left, right) {
    const { run } = this;
    if (right - left < 18 || this.bar < 12) return;
    const texts = phase === "wait" && run.peer[i] >= 0 ? [`waits for ${run.peer[i]}`, `← ${run.peer[i]}`]
      : run.opOf(i) === "store" ? ["loads x … stores x", "load, store"] : [phase];
    const text = texts.find((one) => pen.measureText(one).width < right - left - 8);
    if (!text) return;
    pen.textAlign = "center";
    pen.fillStyle = colour(`on-${phase}`);
    const x = (left + right) / 2, y = this.y(run.rank[i]), half = pen.measureText(text).width / 2;
    pen.fillText(text, x, y);
    this.labels.push([x - half, y - 7, x + half, y + 7]);
  }

  /** Draw the messages in view; one of those that would cover each other. */
  drawArrows(pen) {
    const { run } = this, [from, to] = run.sending.overlapping(...page.view), covered = new Set();
    this.shown = [];
    for (let k = from; k < to; k++) {
      const message = run.messages[k];
      const isHalf = message.send < 0 || message.recv < 0, other = message.send < 0 ? message.src : message.dst;
      if ((isHalf && !(other in run.facts.lost)) || message.received < page.view[0]) continue;
      const [x0, , x1] = this.path(message);
      const key = ((message.src * run.ranks + message.dst) * 8192 + Math.max(0, Math.round(x0))) * 8192
        + Math.min(8191, Math.round(x1));
      if (covered.has(key)) continue;
      covered.add(key);
      this.shown.push(message);
    }
    const n = this.shown.length;
    pen.lineWidth = n > SOME ? 0.6 : 1.2;
    pen.globalAlpha = n > MANY ? 0.25 : n > SOME ? 0.5 : 1;
    for (const message of this.shown) this.drawArrow(pen, message, n <= SOME);
    pen.globalAlpha = 1;
    if (n <= FEW) for (const message of this.shown) this.labelArrow(pen, message);
    return n;
  }

  /** Where a message begins and ends: x, y, x, y. */
  path({ src, dst, sent, received }) {
    const side = src < dst ? 1 : -1, half = this.bar / 2;
    return [this.x(sent), this.y(src) + side * half, this.x(received), this.y(dst) - side * half];
  }

  drawArrow(pen, message, head, ink = null) {
    const [x0, y0, x1, y1] = this.path(message), chunk = this.run.chunk[message.i];
    pen.strokeStyle = pen.fillStyle = ink ?? (chunk < 0 ? colour("arrow") : chunkColour(chunk));
    pen.setLineDash(message.send < 0 || message.recv < 0 ? [3, 3] : []); // of a rank that died: one end is known
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.lineTo(x1, y1);
    pen.stroke();
    pen.setLineDash([]);
    if (!head) return;
    const angle = Math.atan2(y1 - y0, x1 - x0), size = 3.5 + 2 * pen.lineWidth;
    pen.beginPath();
    pen.moveTo(x1, y1);
    for (const turn of [2.75, -2.75]) pen.lineTo(x1 + size * Math.cos(angle + turn), y1 + size * Math.sin(angle + turn));
    pen.fill();
  }

  /** Write the chunk, or the tag, at a place of the arrow that covers no other label; nothing if there is none. */
  labelArrow(pen, message) {
    const [x0, y0, x1, y1] = this.path(message), chunk = this.run.chunk[message.i];
    const text = chunk >= 0 ? String(chunk) : this.run.tagOf(message.i), half = pen.measureText(text).width / 2 + 4;
    if (Math.hypot(x1 - x0, y1 - y0) < Math.max(14, half) || this.lane < 24) return;
    for (const share of [0.5, 0.3, 0.7, 0.15, 0.85]) {
      const x = x0 + share * (x1 - x0), y = y0 + share * (y1 - y0);
      const [left, top, right, bottom] = [x - half, y - 8, x + half, y + 8];
      const isFree = this.labels.every((one) => one[2] < left || one[0] > right || one[3] < top || one[1] > bottom);
      if (!isFree || left < LEFT || right > this.width - RIGHT) continue;
      this.labels.push([left, top, right, bottom]);
      pen.fillStyle = colour("paper");
      pen.beginPath();
      pen.roundRect(left, top, right - left, 16, 8);
      pen.fill();
      pen.textAlign = "center";
      pen.fillStyle = chunk >= 0 ? chunkInk(chunk) : colour("ink");
      pen.fillText(text, x, y);
      return;
    }
  }

  /** Draw, above the rest, the moment: a line, what is on its way, and the event that has begun last. */
  drawMoment() {
    const pen = this.begin(this.above), { run } = this, passed = passedOf(run);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT - 1, 0, this.width - LEFT - RIGHT + 2, this.height);
    pen.clip();
    const [shown, i] = current() ?? [];
    if (shown === run) {
      const message = run.messageOf(i), x0 = this.x(run.t0[i]), x1 = Math.max(x0 + 2, this.x(run.t1[i]));
      if (message && message.send >= 0 && message.recv >= 0) {
        pen.lineWidth = 7;
        this.drawArrow(pen, message, false, colour("halo"));
        pen.lineWidth = 3;
        this.drawArrow(pen, message, true, colour("accent"));
      }
      pen.strokeStyle = colour("accent");
      pen.lineWidth = 2.5;
      pen.strokeRect(x0 - 1, this.y(run.rank[i]) - this.bar / 2 - 3, x1 - x0 + 2, this.bar + 6);
    }
    const x = this.x(page.t);
    pen.fillStyle = colour("accent");
    pen.fillRect(x - 0.75, TOP - 6, 1.5, this.height);
    pen.beginPath();
    pen.moveTo(x - 6, TOP - 12);
    pen.lineTo(x + 6, TOP - 12);
    pen.lineTo(x, TOP - 3);
    pen.fill();
    for (const message of this.onTheWay(passed)) {
      const [x0, y0, x1, y1] = this.path(message);
      const share = x1 > x0 ? Math.min(1, Math.max(0, (x - x0) / (x1 - x0))) : 1;
      pen.beginPath();
      pen.arc(x0 + share * (x1 - x0), y0 + share * (y1 - y0), 5, 0, 2 * Math.PI);
      pen.fillStyle = run.chunk[message.i] < 0 ? colour("accent") : chunkColour(run.chunk[message.i]);
      pen.fill();
      pen.lineWidth = 1.5;
      pen.strokeStyle = colour("ink");
      pen.stroke();
    }
    pen.restore();
  }

  /** The messages of which the sending is among the first `passed` events, the receipt not. */
  onTheWay(passed) {
    const { run } = this, [from, to] = run.sending.overlapping(page.t, page.t), found = [];
    for (let k = from; k < to; k++) {
      const message = run.messages[k];
      if (message.send >= 0 && message.send < passed && message.recv >= passed) found.push(message);
    }
    return found;
  }

  /** What is at a point of the lanes: the event that sends the nearest message, or an event; -1 if nothing is there. */
  find(px, py) {
    const { run } = this;
    let best = NEAR, found = -1;
    for (const message of this.shown) {
      const apart = distance(px, py, ...this.path(message));
      if (apart < best) [best, found] = [apart, message.send < 0 ? message.recv : message.send];
    }
    const rank = Math.floor((py - TOP) / this.lane);
    if (found >= 0 || px < LEFT || rank < 0 || rank >= run.ranks) return found;
    const air = this.x.invert(3) - this.x.invert(0), t = this.x.invert(px), { events, intervals } = run.lanes[rank];
    const [from, to] = intervals.overlapping(t - air, t + air);
    for (let k = from; k < to; k++) if (run.t1[events[k]] >= t - air) found = events[k];
    return found;
  }

  pick(px, py) {
    const i = this.find(px, py);
    if (i >= 0) select(this.run, i);
    else if (px >= LEFT) goTo(this.x.invert(px));
  }

  hint(px, py) {
    const i = this.find(px, py);
    this.above.style.cursor = i >= 0 ? "pointer" : "default";
    const isGap = i < 0 && px >= LEFT && py >= TOP && py < TOP + this.lane * this.run.ranks;
    this.above.title = i >= 0 ? sentence(this.run, i, page.view[1] - page.view[0]) : isGap ? GAP : "";
  }
}

/** Return how far a point is from the line between two others. */
function distance(px, py, x0, y0, x1, y1) {
  const dx = x1 - x0, dy = y1 - y0, along = ((px - x0) * dx + (py - y0) * dy) / (dx * dx + dy * dy || 1);
  const share = Math.min(1, Math.max(0, along));
  return Math.hypot(px - x0 - share * dx, py - y0 - share * dy);
}
