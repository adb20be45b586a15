/** Return until when the events of a rank are lost, which has died: Infinity if it has not returned, -Infinity if none are. */
function lostUntil(run, rank) {
  if (!(rank in run.facts.lost)) return -Infinity;
  const begins = run.facts.lost[rank];
  return begins === null ? Infinity : begins + run.facts.shift;
}

/** Return why the other end of a message at a rank is not on the page. */
function whyMissing(run, rank, t) {
  return t < lostUntil(run, rank) ? `not known: rank ${rank} died, and its events are lost` : "not on this page";
}

/** Say in the lanes of ranks that died from when to when their events are missing. */
function drawLost(pen, lanes) {
  const { run, x } = lanes;
  for (let rank = 0; rank < run.ranks; rank++) {
    const right = Math.min(x(Math.min(lostUntil(run, rank), page.view[1])), lanes.width - RIGHT);
    if (right <= LEFT) continue;
    const y = lanes.y(rank), text = "died; its events are lost", half = pen.measureText(text).width / 2;
    pen.strokeStyle = colour("muted");
    pen.lineWidth = 1;
    pen.setLineDash([4, 4]);
    pen.strokeRect(LEFT + 0.5, y - lanes.bar / 2, right - LEFT - 1, lanes.bar);
    pen.setLineDash([]);
    if (lanes.bar < 6 || right - LEFT < 2 * half + 8) continue;
    pen.textAlign = "center";
    pen.fillStyle = colour("muted");
    pen.fillText(text, (LEFT + right) / 2, y);
    lanes.labels.push([(LEFT + right) / 2 - half, y - 7, (LEFT + right) / 2 + half, y + 7]);
  }
}

/** Return in words whose events are lost, "" if nobody's are. */
function lostInWords(run) {
  return Object.keys(run.facts.lost).map((rank) => {
    const until = lostUntil(run, rank);
    return ` Rank ${rank} died; its events ${until === Infinity ? "" : `before ${inWords(until, until)} `}are lost.`;
  }).join("");
}
