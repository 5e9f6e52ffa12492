// The difference of two texts, line by line. Pure.

/**
 * @param {string} before @param {string} after
 * @returns {{kind: "same" | "del" | "add" | "gap", text: string}[]} with `context` equal lines around each change
 */
export function diff(before, after, context = 3) {
  const a = before.split("\n");
  const b = after.split("\n");
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let [endA, endB] = [a.length, b.length];
  while (endA > start && endB > start && a[endA - 1] === b[endB - 1]) {
    endA -= 1;
    endB -= 1;
  }
  const lines = [
    ...a.slice(0, start).map(same),
    ...middle(a.slice(start, endA), b.slice(start, endB)),
    ...a.slice(endA).map(same),
  ];
  return folded(lines, context);
}

/** @returns {{kind: "same", text: string}} */
const same = (text) => ({ kind: "same", text });

/** The longest common subsequence of what differs. */
function middle(a, b) {
  // A table of a million entries is enough for configurations; beyond it, all of it counts as changed.
  if (a.length * b.length > 1e6) return [...a.map((text) => ({ kind: "del", text })), ...b.map((text) => ({ kind: "add", text }))];
  const table = Array.from({ length: a.length + 1 }, () => new Uint32Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
    }
  }
  const lines = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push(same(a[i]));
      i += 1;
      j += 1;
    } else if (i < a.length && (j >= b.length || table[i + 1][j] >= table[i][j + 1])) {
      lines.push({ kind: "del", text: a[i] });
      i += 1;
    } else {
      lines.push({ kind: "add", text: b[j] });
      j += 1;
    }
  }
  return lines;
}

function folded(lines, context) {
  const near = lines.map((_, at) => lines.slice(Math.max(0, at - context), at + context + 1).some((line) => line.kind !== "same"));
  const shown = [];
  lines.forEach((line, at) => {
    if (near[at]) shown.push(line);
    else if (near[at - 1] || at === 0) shown.push({ kind: "gap", text: "…" });
  });
  return shown;
}
