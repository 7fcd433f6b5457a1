// Languages of the highlighter. `multi` has delimiters that may span lines, with the class of the text
// between; `attr` matches property names.

const words = (text) => new Set(text.split(" "));

const C_COMMENTS = { line: ["//"], multi: [["/*", "*/", "c"]] };
const HASH = { line: ["#"], multi: [] };

const python = {
  line: ["#"],
  multi: [['"""', '"""', "s"], ["'''", "'''", "s"]],
  strings: "\"'",
  keywords: words("and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return try while with yield"),
  literals: words("True False None self cls"),
};

const javascript = {
  line: ["//"],
  multi: [["/*", "*/", "c"], ["`", "`", "s"]],
  strings: "\"'",
  keywords: words("abstract as async await break case catch class const continue debugger declare default delete do else enum export extends finally for from function get if implements import in instanceof interface keyof let namespace new of private protected public readonly return set static super switch throw try type typeof var void while with yield"),
  literals: words("true false null undefined this NaN Infinity"),
};

const c = {
  ...C_COMMENTS,
  strings: "\"'",
  keywords: words("alignas alignof auto bool break case catch char char8_t class co_await co_return co_yield concept const consteval constexpr constinit const_cast continue decltype default delete do double dynamic_cast else enum explicit export extern float for friend goto if inline int long mutable namespace new noexcept operator override private protected public register reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template throw try typedef typename union unsigned using virtual void volatile while"),
  literals: words("true false nullptr NULL this"),
  attr: /#\s*(?:include|define|if|ifdef|ifndef|endif|else|pragma|undef)\b/y,
};

const java = {
  ...C_COMMENTS,
  strings: "\"'",
  keywords: words("abstract as async await base bool boolean break byte case catch char class companion const continue data decimal def default do double else enum extends extension fallthrough final finally float for foreach fun func get guard if implements import in inline init instanceof int interface internal is lateinit let long namespace native new object open operator out override package params private protected protocol public readonly record ref return sealed set short static string struct super suspend switch synchronized throw throws transient try typealias typeof using val var virtual void volatile when where while yield"),
  literals: words("true false null nil this self"),
};

const go = {
  line: ["//"],
  multi: [["/*", "*/", "c"], ["`", "`", "s"]],
  strings: "\"'",
  keywords: words("any bool break byte case chan const continue default defer else error fallthrough float32 float64 for func go goto if import int int32 int64 interface map package range return rune select string struct switch type uint uint8 var"),
  literals: words("true false nil iota"),
};

const rust = {
  ...C_COMMENTS,
  strings: '"',
  keywords: words("as async await bool break char const continue crate dyn else enum extern f32 f64 fn for i16 i32 i64 i8 if impl in isize let loop match mod move mut pub ref return static str struct super trait type u16 u32 u64 u8 union unsafe use usize where while"),
  literals: words("true false self Self Some None Ok Err"),
};

const shell = {
  ...HASH,
  strings: "\"'",
  keywords: words("case do done elif else esac exit export fi for function if in local return select set shift source then trap unset until while"),
  literals: words("true false"),
  attr: /\$(?:\w+|\{[^}]*\}|[@#?*$!-])/y,
};

const sql = {
  line: ["--"],
  multi: [["/*", "*/", "c"]],
  strings: "\"'",
  caseless: true,
  keywords: words("add all alter and as asc begin between by cascade case check column commit constraint create cross default delete desc distinct drop else end except exists foreign from full group having if in index inner insert integer intersect into is join key left like limit not null offset on or order outer primary references returning right rollback select set table text then to transaction union unique update using values varchar view when where with"),
  literals: words("true false null"),
};

const ruby = {
  ...HASH,
  strings: "\"'",
  keywords: words("alias and begin break case class def do else elsif end ensure for if in module next not or redo require rescue retry return super then undef unless until when while yield function local repeat"),
  literals: words("true false nil self"),
};

const php = { ...java, line: ["//", "#"], keywords: new Set([...java.keywords, ..."echo elseif endif endforeach function use trait global isset array".split(" ")]), attr: /\$\w+/y };
const json = { line: ["//"], multi: [], strings: '"', keywords: words(""), literals: words("true false null"), attr: /"(?:[^"\\]|\\.)*"(?=\s*:)/y };
const yaml = { ...HASH, strings: "\"'", keywords: words(""), literals: words("true false null yes no"), attr: /[\w.-]+(?=\s*:(?:\s|$))/y };
const toml = { ...HASH, strings: "\"'", keywords: words(""), literals: words("true false"), attr: /[\w.-]+(?=\s*=)|^\s*\[.*\]/y };
const css = { line: [], multi: [["/*", "*/", "c"]], strings: "\"'", keywords: words(""), literals: words("inherit initial none auto"), attr: /[\w-]+(?=\s*:[^:])|@[\w-]+/y };
const markup = { line: [], multi: [["<!--", "-->", "c"]], strings: '"', keywords: words(""), literals: words(""), attr: /<[/!?]?[A-Za-z][\w:.-]*|\/?>|[\w:@-]+(?==)/y };
const docker = { ...HASH, strings: "\"'", keywords: words("FROM RUN CMD COPY ADD ENV ARG WORKDIR EXPOSE ENTRYPOINT USER VOLUME LABEL AS"), literals: words("") };

const BY_NAME = {
  python, py: python, python3: python, pycon: python, ipython: python,
  javascript, js: javascript, jsx: javascript, mjs: javascript, node: javascript,
  typescript: javascript, ts: javascript, tsx: javascript,
  c, h: c, cpp: c, "c++": c, cc: c, cxx: c, hpp: c, cuda: c, objc: c, glsl: c,
  java, kotlin: java, kt: java, swift: java, scala: java, csharp: java, cs: java, "c#": java, dart: java,
  go, golang: go, rust, rs: rust, php,
  bash: shell, sh: shell, shell, zsh: shell, console: shell, fish: shell, powershell: shell, makefile: shell, make: shell,
  sql, sqlite: sql, postgresql: sql, mysql: sql,
  ruby, rb: ruby, lua: { ...ruby, line: ["--"] }, perl: { ...php, line: ["#"] }, r: { ...ruby },
  json, jsonc: json, json5: json, yaml, yml: yaml, toml, ini: toml,
  css, scss: css, less: css, html: markup, xml: markup, svg: markup, vue: markup,
  dockerfile: docker, docker,
};

/** Return a language by the name after a fence, or null. */
export const findLanguage = (name) => (Object.hasOwn(BY_NAME, name) ? BY_NAME[name] : null);
