# Homebrew formula for the macOS arm64 wheel. The release workflow replaces the placeholders for version and checksum and
# adds the formula to the release:
#
#     brew tap-new you/woolly && cp woolly-llm.rb "$(brew --repository you/woolly)/Formula/" && brew install woolly-llm
#
# pip downloads the dependencies as wheels, so nothing is listed here and nothing is compiled.
class WoollyLlm < Formula
  desc "Local inference engine for language models in GGUF files"
  homepage "https://pypi.org/project/woolly-llm/"
  url "https://files.pythonhosted.org/packages/cp312/w/woolly-llm/woolly_llm-@VERSION@-cp312-abi3-macosx_11_0_arm64.whl",
      using: :nounzip
  version "@VERSION@"
  sha256 "@SHA256@"
  license "Apache-2.0"

  depends_on arch: :arm64
  depends_on :macos
  depends_on "python@3.13"

  def install
    system Formula["python@3.13"].opt_bin/"python3.13", "-m", "venv", libexec
    system libexec/"bin/pip", "install", "--only-binary=:all:", Dir["*.whl"].first
    bin.install_symlink libexec/"bin/woolly", libexec/"bin/woolly-server"
  end

  service do
    run [opt_bin/"woolly", "serve"]
    keep_alive crashed: true
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/woolly --version")
  end
end
