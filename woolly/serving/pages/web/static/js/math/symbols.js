// TeX commands for single characters, and TeX's math alphabets.

/** Parse "name character name character ..." into a table. */
const table = (text) => new Map(text.trim().split(/\s+/).reduce((pairs, one, i, all) => (i % 2 ? pairs : [...pairs, [one, all[i + 1]]]), []));

/** Letters, rendered as identifiers. */
export const LETTERS = table(`
  alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ varkappa ϰ lambda λ mu μ nu ν
  xi ξ omicron ο pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω
  Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω
  infty ∞ partial ∂ nabla ∇ hbar ℏ hslash ℏ ell ℓ Re ℜ Im ℑ wp ℘ aleph ℵ beth ℶ emptyset ∅ varnothing ∅ imath ı jmath ȷ
  angle ∠ triangle △ square □ Box □ blacksquare ■ degree ° top ⊤ bot ⊥ flat ♭ sharp ♯ natural ♮ checkmark ✓ dag † ddag ‡
  clubsuit ♣ diamondsuit ♢ heartsuit ♡ spadesuit ♠ prime ′ backprime ‵ complement ∁ Bbbk 𝕜 pounds £ yen ¥ euro €
  # # % % $ $ & & _ _ S § P ¶ copyright © AA Å
`);

/** Operators and relations. */
export const OPERATORS = table(`
  times × cdot ⋅ cdotp ⋅ div ÷ pm ± mp ∓ ast ∗ star ⋆ circ ∘ bullet ∙ oplus ⊕ ominus ⊖ otimes ⊗ oslash ⊘ odot ⊙ dagger † ddagger ‡ amalg ⨿
  cap ∩ cup ∪ uplus ⊎ sqcap ⊓ sqcup ⊔ vee ∨ lor ∨ wedge ∧ land ∧ setminus ∖ smallsetminus ∖ wr ≀ diamond ⋄ ltimes ⋉ rtimes ⋊ bowtie ⋈
  leq ≤ le ≤ geq ≥ ge ≥ leqslant ⩽ geqslant ⩾ neq ≠ ne ≠ equiv ≡ approx ≈ sim ∼ simeq ≃ cong ≅ propto ∝ ll ≪ gg ≫ lll ⋘ ggg ⋙
  prec ≺ succ ≻ preceq ⪯ succeq ⪰ doteq ≐ asymp ≍ models ⊨ vdash ⊢ dashv ⊣ vDash ⊨ perp ⊥ parallel ∥ nparallel ∦ mid ∣ nmid ∤ lesssim ≲ gtrsim ≳
  in ∈ notin ∉ ni ∋ subset ⊂ supset ⊃ subseteq ⊆ supseteq ⊇ subsetneq ⊊ supsetneq ⊋ nsubseteq ⊈ sqsubseteq ⊑ sqsupseteq ⊒ triangleq ≜ coloneqq ≔
  forall ∀ exists ∃ nexists ∄ neg ¬ lnot ¬ therefore ∴ because ∵ colon : ldotp . surd √
  to → rightarrow → leftarrow ← gets ← leftrightarrow ↔ Rightarrow ⇒ Leftarrow ⇐ Leftrightarrow ⇔ implies ⟹ impliedby ⟸ iff ⟺ mapsto ↦
  longrightarrow ⟶ longleftarrow ⟵ Longrightarrow ⟹ Longleftarrow ⟸ longleftrightarrow ⟷ Longleftrightarrow ⟺ longmapsto ⟼ hookrightarrow ↪ hookleftarrow ↩
  uparrow ↑ downarrow ↓ updownarrow ↕ Uparrow ⇑ Downarrow ⇓ nearrow ↗ searrow ↘ swarrow ↙ nwarrow ↖ rightharpoonup ⇀ leftharpoonup ↼ rightleftharpoons ⇌ leadsto ⇝ rightsquigarrow ⇝
  ldots … dots … dotsc … dotsb ⋯ dotsm ⋯ cdots ⋯ vdots ⋮ ddots ⋱
`);

/** Large operators; true: limits are below and above in a display formula. */
export const LARGE = new Map([
  ...[..."∑∏∐⋃⋂⋁⋀⨁⨂⨀⨄⨆"].map((sign, i) => ["sum prod coprod bigcup bigcap bigvee bigwedge bigoplus bigotimes bigodot biguplus bigsqcup".split(" ")[i], [sign, true]]),
  ...[..."∫∬∭∮∯"].map((sign, i) => ["int iint iiint oint oiint".split(" ")[i], [sign, false]]),
]);

/** Functions with upright names; the functions in LIMITS have limits below. */
export const FUNCTIONS = new Set("sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan arg deg dim exp hom ker lg ln log".split(" "));
export const LIMITS = new Map([..."lim max min sup inf det gcd Pr argmax argmin".split(" ").map((name) => [name, name]), ["limsup", "lim sup"], ["liminf", "lim inf"]]);

/** Accents: the character above (or below), and true if it stretches. */
export const ACCENTS = new Map([
  ...Object.entries({ hat: "^", check: "ˇ", tilde: "~", acute: "´", grave: "`", dot: "˙", ddot: "¨", breve: "˘", bar: "¯", vec: "→", mathring: "˚" }).map(([name, sign]) => [name, [sign, false, "over"]]),
  ...Object.entries({ widehat: "^", widetilde: "~", overrightarrow: "→", overleftarrow: "←", overleftrightarrow: "↔", overbrace: "⏞" }).map(([name, sign]) => [name, [sign, true, "over"]]),
  ...Object.entries({ underbrace: "⏟", underrightarrow: "→", underleftarrow: "←" }).map(([name, sign]) => [name, [sign, true, "under"]]),
]);

/** Fences after \left, \right and \big. */
export const FENCES = new Map([
  ...["(", ")", "[", "]", "|", "/"].map((sign) => [sign, sign]),
  ...table("\\{ { \\} } \\lbrace { \\rbrace } \\lbrack [ \\rbrack ] \\langle ⟨ \\rangle ⟩ < ⟨ > ⟩ \\| ‖ \\Vert ‖ \\lVert ‖ \\rVert ‖ \\vert | \\lvert | \\rvert | \\lfloor ⌊ \\rfloor ⌋ \\lceil ⌈ \\rceil ⌉ \\backslash \\ \\uparrow ↑ \\downarrow ↓"),
  [".", ""],
]);

/** Widths of spaces in em. */
export const SPACES = new Map([[",", 0.167], ["thinspace", 0.167], [":", 0.222], [">", 0.222], ["medspace", 0.222], [";", 0.278], ["thickspace", 0.278], ["!", -0.167], ["quad", 1], ["qquad", 2], [" ", 0.333], ["enspace", 0.5]]);

// First code points of Unicode's mathematical alphabets: capitals, small letters, digits (0: none).
const ALPHABETS = {
  mathbf: [0x1d400, 0x1d41a, 0x1d7ce],
  boldsymbol: [0x1d468, 0x1d482, 0x1d7ce],
  mathcal: [0x1d49c, 0x1d4b6, 0],
  mathfrak: [0x1d504, 0x1d51e, 0],
  mathbb: [0x1d538, 0x1d552, 0x1d7d8],
  mathsf: [0x1d5a0, 0x1d5ba, 0x1d7e2],
  mathtt: [0x1d670, 0x1d68a, 0x1d7f6],
};
const BOLD_GREEK = { mathbf: [0x1d6a8, 0x1d6c2], boldsymbol: [0x1d71c, 0x1d736] };

// Letters that are encoded outside of their alphabets.
const HOLES = {
  mathcal: { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" },
  mathfrak: { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" },
  mathbb: { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" },
};

const SAME = { mathscr: "mathcal", bm: "boldsymbol", pmb: "boldsymbol", bold: "mathbf" };

/** Return true if a command selects an alphabet. */
export const isAlphabet = (name) => name in ALPHABETS || name in SAME || name === "mathrm" || name === "mathit" || name === "mathnormal";

/** Return a character in an alphabet, or unchanged if the alphabet does not have it. */
export function inAlphabet(name, character) {
  const key = SAME[name] ?? name;
  const hole = HOLES[key]?.[character];
  if (hole) return hole;
  const starts = ALPHABETS[key];
  if (!starts) return character;
  const code = character.codePointAt(0);
  const from = (first, base) => (base ? String.fromCodePoint(base + code - first) : character);
  if (/^[A-Z]$/.test(character)) return from(65, starts[0]);
  if (/^[a-z]$/.test(character)) return from(97, starts[1]);
  if (/^[0-9]$/.test(character)) return from(48, starts[2]);
  if (BOLD_GREEK[key] && /^[Α-Ω]$/.test(character)) return from(0x391, BOLD_GREEK[key][0]);
  if (BOLD_GREEK[key] && /^[α-ω]$/.test(character)) return from(0x3b1, BOLD_GREEK[key][1]);
  return character;
}
