const CHUNKS = 7; // colours of chunks, in page.css; then they begin again
const MOST = 24; // ranks of which the chunks can be shown

function chunkColour(chunk) { return colour(`chunk-${chunk % CHUNKS}`); }

function chunkInk(chunk) { return colour(`chunk-ink-${chunk % CHUNKS}`); }

/** How far the ring all-reduce of one step is on every rank: which ranks' parts are in each of its chunks. */
class Chunks {
  constructor(run, box) {
    this.run = run;
    this.before = run.facts.ring_before; // what came before the page
    this.box = box;
    const ring = run.messages.filter((message) => run.chunk[message.i] >= 0);
    this.sent = this.byRank(ring, "send", "src", "share-reduce");
    this.added = this.byRank(ring, "recv", "dst", "share-reduce");
    this.copied = this.byRank(ring, "recv", "dst", "share-only");
    this.rounds = new Map(); // of each message that has come, from 1
    for (const [received, before] of [[this.added, this.before.added], [this.copied, this.before.copied]]) {
      received.forEach((events, rank) => events.forEach((i, k) => {
        this.rounds.set(run.message[i], 1 + Math.floor((before[rank] + k) / (run.ranks - 1)));
      }));
    }
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

  /** How many rounds of the ring a rank has begun after the first `passed` events. */
  begun(rank, passed) {
    return Math.ceil((this.before.sent[rank] + d3.bisectLeft(this.sent[rank], passed)) / (this.run.ranks - 1));
  }

  /** The round that an event belongs to, from 1: in a step whose round has not begun at its rank, the next. */
  roundOf(i) {
    if (i < 0) return 1;
    const { run } = this, rank = run.rank[i], begun = this.begun(rank, i + 1);
    const k = d3.bisectRight(this.copied[rank], i), last = this.copied[rank][k - 1];
    const isOver = this.before.copied[rank] + k >= begun * (run.ranks - 1);
    return isOver && (last === undefined || run.stepOf[i] > run.stepOf[last]) ? begun + 1 : Math.max(1, begun);
  }

  /** The ranks whose parts are in chunk c of a rank, in a round: as [rank][c], an array. */
  state(passed, round) {
    const N = this.run.ranks, { before } = this, earlier = (round - 1) * (N - 1);
    const here = (count) => Math.min(N - 1, count - earlier); // of the messages of this round
    return d3.range(N).map((rank) => {
      const own = d3.range(N).map(() => [rank]);
      if (this.begun(rank, passed) < round) return own;
      const added = here(before.added[rank] + d3.bisectLeft(this.added[rank], passed));
      const copied = here(before.copied[rank] + d3.bisectLeft(this.copied[rank], passed));
      for (let s = 0; s < added; s++) { // step s brings chunk (r - s - 1) with the parts of s + 1 ranks
        own[mod(rank - s - 1, N)] = d3.range(s + 2).map((k) => mod(rank - s - 1 + k, N));
      }
      for (let s = 0; s < copied; s++) own[mod(rank - s, N)] = d3.range(N);
      return own;
    });
  }

  draw() {
    const { run } = this, passed = passedOf(run), i = toldOf(run), N = run.ranks;
    const round = this.roundOf(i), state = this.state(passed, round);
    const leaving = new Map();
    const [from, to] = run.sending.overlapping(page.t, page.t);
    for (const message of run.messages.slice(from, to)) {
      if (this.rounds.get(message.k) === round && message.send >= 0 && message.send < passed && message.recv >= passed) {
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
      `Chunks of the ring${i < 0 || run.stepOf[i] < 0 ? "" : ` in step ${run.stepOf[i] + 1}`}: a box is the part of one rank, filled when it is added. ${whole} of ${N * N} sums are whole.`,
    );
  }
}

function mod(a, n) { return ((a % n) + n) % n; }
