/** Intervals in the order of their start; which of them overlap a view is found without looking at all. */
class Intervals {
  constructor(starts, ends) {
    this.starts = starts;
    this.reach = Float64Array.from(ends); // how far those so far reach: never falls
    for (let i = 1; i < ends.length; i++) this.reach[i] = Math.max(this.reach[i], this.reach[i - 1]);
  }

  /** Return [from, to): no other interval overlaps the time from a to b. */
  overlapping(a, b) {
    return [d3.bisectLeft(this.reach, a), d3.bisectRight(this.starts, b)];
  }
}

const ARRAYS = {
  "<f8": Float64Array, "<i4": Int32Array, "<u2": Uint16Array, "<u1": Uint8Array,
};

/** Return the columns of a run, by name: see columns.py. */
async function unpack(facts) {
  const packed = Uint8Array.from(atob(facts.packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const raw = await new Response(stream).arrayBuffer();
  const columns = {};
  let at = 0;
  for (const [name, type] of Object.entries(facts.types)) {
    columns[name] = new ARRAYS[type](raw, at, facts.n);
    at += columns[name].byteLength;
  }
  return columns;
}

/** A run: its events, one a number from 0 on in the order of their start, and what is found of them fast. */
class Run {
  constructor(number, facts, columns, names) {
    Object.assign(this, columns);
    this.number = number;
    this.facts = facts;
    this.size = facts.n;
    this.ranks = facts.roles.length;
    this.phases = names.phases;
    this.ops = names.ops;
    for (let i = 0; i < this.size; i++) {
      this.t0[i] += facts.shift;
      this.t1[i] += facts.shift;
    }
    this.places = facts.lines.map((line) => {
      const colon = line.lastIndexOf(":");
      return { file: line.slice(0, colon), number: Number(line.slice(colon + 1)) };
    });
    this.lanes = this.facts.roles.map(() => []);
    for (let i = 0; i < this.size; i++) this.lanes[this.rank[i]].push(i);
    this.lanes = this.lanes.map((events) => ({
      events,
      intervals: new Intervals(events.map((i) => this.t0[i]), events.map((i) => this.t1[i])),
    }));
    this.pairMessages();
    this.stepOf = this.steps();
    this.inStep = this.keepsStep();
    this.stores = this.pairStores();
    this.applied = this.eventsWhere((i) => this.phaseOf(i) === "update" && !this.opOf(i) && this.version_read[i] >= 0);
    this.appliedAt = this.applied.map((i) => this.t0[i]);
    this.updates = this.lanes.map((_, rank) => { // by rank: an update is made with the last gradient of its version
      const own = this.applied.filter((i) => this.rank[i] === rank);
      return own.filter((i, k) => this.version_applied[i] !== this.version_applied[own[k + 1]]);
    });
    this.dropped = this.eventsWhere((i) => this.opOf(i) === "drop");
    const used = [...this.applied, ...this.dropped];
    this.mostStale = d3.max(used, (i) => this.version_applied[i] - this.version_read[i]) ?? 0;
  }

  /** Messages, in the order in which they were sent: the events that send and receive each, -1 where there is none. */
  pairMessages() {
    const ends = new Map();
    for (let i = 0; i < this.size; i++) {
      if (this.message[i] < 0) continue;
      if (!ends.has(this.message[i])) ends.set(this.message[i], { send: -1, recv: -1 });
      ends.get(this.message[i])[this.opOf(i) === "send" ? "send" : "recv"] = i;
    }
    this.messages = [...ends.values()].map(({ send, recv }) => {
      const i = send >= 0 ? send : recv;
      const [src, dst] = this.opOf(i) === "send" ? [this.rank[i], this.peer[i]] : [this.peer[i], this.rank[i]];
      const sent = this.t0[i];
      // A receipt may begin before the message is sent, which then comes while the receiver looks for it.
      const received = recv < 0 ? sent : Math.max(sent, this.opOf(recv) === "read" ? this.t1[recv] : this.t0[recv]);
      return { send, recv, src, dst, sent, received, i };
    });
    this.messages.sort((a, b) => a.sent - b.sent || a.i - b.i);
    this.messages.forEach((message, k) => {
      message.k = k;
      for (const i of [message.send, message.recv]) if (i >= 0) this.message[i] = k;
    });
    this.sending = new Intervals(
      this.messages.map((message) => message.sent), this.messages.map((message) => message.received),
    );
  }

  /** By event, of each that stores what it has made of a shared x: whose updates x then has, and which it has lost. */
  pairStores() {
    const held = new Map(), found = new Map(), stores = this.eventsWhere((i) => this.opOf(i) === "store");
    for (const i of stores.sort((a, b) => this.version_applied[a] - this.version_applied[b])) {
      const loaded = held.get(this.version_read[i]) ?? [], was = held.get(this.version_applied[i]) ?? [];
      held.set(this.version_applied[i] + 1, [...loaded, i]);
      found.set(i, { has: [...loaded, i], lost: was.filter((one) => !loaded.includes(one)) });
    }
    return found;
  }

  /** The step of each event, from 0; -1 at the start. A server is in the step of the message that it last handled. */
  steps() {
    const steps = Int32Array.from(this.step, (step, i) => (this.epoch[i] === 0 ? -1 : step));
    this.facts.roles.forEach((role, rank) => {
      if (role !== "server") return;
      let last = -1;
      for (const i of this.lanes[rank].events) {
        const message = this.messageOf(i), other = message && (message.send === i ? message.recv : message.send);
        if (other >= 0 && this.facts.roles[this.rank[other]] !== "server") last = Math.max(last, steps[other]);
        steps[i] = last;
      }
    });
    return steps;
  }

  /** Whether no worker begins a step before all have ended the last but one: then the run is told step after step. */
  keepsStep() {
    const begins = new Map(), ends = new Map();
    for (let i = 0; i < this.size; i++) {
      const step = this.stepOf[i];
      if (step < 0 || this.facts.roles[this.rank[i]] === "server") continue;
      begins.set(step, Math.min(begins.get(step) ?? Infinity, this.t0[i]));
      ends.set(step, Math.max(ends.get(step) ?? -Infinity, this.t1[i]));
    }
    return [...ends].every(([step, end]) => end <= (begins.get(step + 2) ?? Infinity));
  }

  eventsWhere(holds) {
    const found = [];
    for (let i = 0; i < this.size; i++) if (holds(i)) found.push(i);
    return found;
  }

  phaseOf(i) { return this.phases[this.phase[i]]; }

  opOf(i) { return this.ops[this.op[i]]; }

  tagOf(i) { return this.facts.tags[this.tag[i]]; }

  /** The message that an event sends, receives or reads; undefined if it does not. */
  messageOf(i) { return this.messages[this.message[i]]; }

  /** The file and number of the line that was at work, or null. */
  placeOf(i) { return this.facts.lines[this.line[i]] ? this.places[this.line[i]] : null; }

  get end() { return d3.max(this.t1) ?? 0; }

  /** The event that a rank is at, of the first `passed` ones and at time t; -1 between events. */
  at(rank, passed, t) {
    const { events, intervals } = this.lanes[rank];
    for (let k = d3.bisectLeft(events, passed) - 1; k >= 0 && intervals.reach[k] >= t; k--) {
      if (this.t1[events[k]] >= t) return events[k];
    }
    return -1;
  }

  /** The version of x at a rank after the first `passed` events, or null where none is known. */
  versionAt(rank, passed) {
    const own = this.updates[rank], k = d3.bisectLeft(own, passed) - 1;
    if (!own.length) return null;
    return k < 0 ? this.version_applied[own[0]] : this.version_applied[own[k]] + 1;
  }
}
