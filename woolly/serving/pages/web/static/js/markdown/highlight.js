// Highlighter: tokens of one line of code, with a state for constructs that span lines.

const NUMBER = /(?:0[xX][\da-fA-F_]+|0[bB][01_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\w*/y;
const WORD = /[\p{L}_$][\p{L}\p{N}_$]*/uy;

const MAX_LINE_LENGTH = 2000; // characters; longer lines are not highlighted

/**
 * Return [tokens, state] of a line. Tokens are [class, text], with an empty class for plain text; `state` is the open
 * construct that continues in the next line, or null. The joined tokens are the line.
 */
export function highlightLine(line, language, state) {
  if (line.length > MAX_LINE_LENGTH) return [[["", line]], state];
  const tokens = [];
  let plain = "";
  let at = 0;
  const push = (kind, text) => {
    if (plain) tokens.push(["", plain]);
    plain = "";
    if (text) tokens.push([kind, text]);
    at += text.length;
  };
  while (at < line.length) {
    if (state) {
      const end = line.indexOf(state[1], at);
      push(state[2], end < 0 ? line.slice(at) : line.slice(at, end + state[1].length));
      if (end >= 0) state = null;
      continue;
    }
    const spanning = language.multi.find(([open]) => line.startsWith(open, at));
    if (spanning) {
      const end = line.indexOf(spanning[1], at + spanning[0].length);
      push(spanning[2], end < 0 ? line.slice(at) : line.slice(at, end + spanning[1].length));
      if (end < 0) state = spanning;
      continue;
    }
    if (language.line.some((mark) => beginsComment(line, at, mark))) {
      push("c", line.slice(at));
      continue;
    }
    const name = language.attr && match(language.attr, line, at);
    if (name) push("a", name);
    else if (language.strings.includes(line[at])) push("s", stringAt(line, at));
    else {
      const word = match(WORD, line, at);
      const number = word ? "" : match(NUMBER, line, at);
      if (number) push("n", number);
      else if (word) {
        const kind = kindOf(word, language, line[at + word.length]);
        if (kind) push(kind, word);
        else {
          plain += word;
          at += word.length;
        }
      } else {
        plain += line[at];
        at += 1;
      }
    }
  }
  push("", "");
  return [tokens, state];
}

/** Return true if a # starts a comment: only at the start of a word, so $# and a#b do not. */
function beginsComment(line, at, mark) {
  return line.startsWith(mark, at) && (mark !== "#" || at === 0 || /[\s;(){}]/.test(line[at - 1]));
}

function match(pattern, line, at) {
  pattern.lastIndex = at;
  return pattern.exec(line)?.[0] ?? "";
}

function stringAt(line, at) {
  for (let i = at + 1; i < line.length; i += 1) {
    if (line[i] === "\\") i += 1;
    else if (line[i] === line[at]) return line.slice(at, i + 1);
  }
  return line.slice(at);
}

function kindOf(word, language, after) {
  const known = language.caseless ? word.toLowerCase() : word;
  if (language.keywords.has(known)) return "k";
  if (language.literals.has(known)) return "n";
  return after === "(" ? "f" : "";
}
