const CHUNKS = 8; // colours of chunks, in page.css; then they begin again
const MOST = 24; // ranks of which the chunks can be shown

function chunkColour(chunk) { return colour(`chunk-${chunk % CHUNKS}`); }

function chunkInk(chunk) { return colour(`chunk-ink-${chunk % CHUNKS}`); }

/** How far the ring all-reduce is on every rank: which ranks' parts are in each of its chunks. */
class Chunks {
  constructor(run, box) {
    this.run = run;
    this.before = run.facts.ring_before; // what came before the page
    this.box = box;
    const ring = run.messages.filter((message) => run.chunk[message.i] >= 0);
    this.sent = this.byRank(ring, "send", "src", "share-reduce");
    this.added = this.byRank(ring, "recv", "dst", "share-reduce");
    this.copied = this.byRank(ring, "recv", "dst", "share-only");
    this.onTheWay = ring;
    if (!ring.length) return;
    if (run.ranks > MOST) {
      box.textContent = `The chunks of ${run.ranks} ranks have no room here; up to ${MOST} have.`;
      return;
    }
    this.build();
    drawers.moment.push(() => this.draw());
  }

  /** By rank, the events at one end of the messages with this tag. */
  byRank(ring, end, side, tag) {
    const found = this.run.lanes.map(() => []);
    for (const message of ring) {
      if (message[end] >= 0 && this.run.tagOf(message.i) === tag) found[message[side]].push(message[end]);
    }
    return found.map((events) => events.sort((a, b) => a - b));
  }

  build() {
    const N = this.run.ranks, table = d3.select(this.box).append("table");
    table.classed("small", N > 8);
    this.caption = table.append("caption");
    const head = table.append("thead").append("tr");
    head.append("td");
    for (let c = 0; c < N; c++) head.append("th").attr("scope", "col").text(N > 8 ? c : `chunk ${c}`);
    const body = table.append("tbody");
    this.cells = d3.range(N).map((rank) => {
      const row = body.append("tr");
      row.append("th").attr("scope", "row").text(N > 8 ? rank : `rank ${rank}`);
      return d3.range(N).map((c) => {
        const cell = row.append("td").style("--chunk", `var(--chunk-${c % CHUNKS})`);
        const parts = cell.append("span").attr("class", "parts").attr("aria-hidden", "true");
        for (let k = 0; k < N; k++) parts.append("i");
        return { cell, parts: parts.selectAll("i").nodes(), text: cell.append("span"), was: "" };
      });
    });
  }

  /** The ranks whose parts are in chunk c of a rank: as [rank][c], an array. */
  state(passed) {
    const N = this.run.ranks, round = N - 1, { before } = this;
    return d3.range(N).map((rank) => {
      const own = d3.range(N).map(() => [rank]);
      const begun = Math.ceil((before.sent[rank] + d3.bisectLeft(this.sent[rank], passed)) / round);
      if (!begun) return own;
      const earlier = (begun - 1) * round;
      const added = before.added[rank] + d3.bisectLeft(this.added[rank], passed) - earlier;
      const copied = before.copied[rank] + d3.bisectLeft(this.copied[rank], passed) - earlier;
      for (let s = 0; s < added; s++) { // step s brings chunk (r - s - 1) with the parts of s + 1 ranks
        own[mod(rank - s - 1, N)] = d3.range(s + 2).map((k) => mod(rank - s - 1 + k, N));
      }
      for (let s = 0; s < copied; s++) own[mod(rank - s, N)] = d3.range(N);
      return own;
    });
  }

  draw() {
    const { run } = this, passed = passedOf(run), state = this.state(passed), N = run.ranks;
    const leaving = new Map();
    const [from, to] = run.sending.overlapping(page.t, page.t);
    for (const message of run.messages.slice(from, to)) {
      if (run.chunk[message.i] >= 0 && message.send >= 0 && message.send < passed && message.recv >= passed) {
        leaving.set(message.src * N + run.chunk[message.i], message.dst);
      }
    }
    let whole = 0;
    for (let rank = 0; rank < N; rank++) {
      for (let c = 0; c < N; c++) {
        const parts = state[rank][c], to_ = leaving.get(rank * N + c), one = this.cells[rank][c];
        whole += parts.length === N;
        const now = `${parts.join()}>${to_}`;
        if (one.was === now) continue;
        one.was = now;
        one.parts.forEach((part, k) => part.classList.toggle("in", parts.includes(k)));
        one.cell.classed("whole", parts.length === N).classed("leaves", to_ !== undefined);
        const arrow = to_ === undefined ? "" : ` → ${to_}`;
        one.text.text(N > 8 ? "" : `${parts.length}/${N}${arrow}`);
        one.cell.attr("aria-label", `${parts.length} of ${N} parts${to_ === undefined ? "" : `, on its way to rank ${to_}`}`);
      }
    }
    this.caption.text(
      `Chunks of the ring: a box is the part of one rank, filled when it is added. ${whole} of ${N * N} sums are whole.`,
    );
  }
}

function mod(a, n) { return ((a % n) + n) % n; }
