# Installs Woolly for the user who starts this, in an environment of its own, by uv or pipx:
#
#     .\install.ps1                    the newest release
#     .\install.ps1 0.1.0              this version
#     .\install.ps1 path\to\file.whl   this wheel
#
# It takes uv or pipx if the machine has one of them. Else it installs uv by pip, which checks what it fetches against
# the checksums of the package index, into %LOCALAPPDATA%\woolly\uv. It fetches nothing from anywhere else.
param([string]$What = "")

$ErrorActionPreference = "Stop"

function Say([string]$Text) { [Console]::Error.WriteLine("woolly: $Text") }
function Stop-Here([string]$Text) { Say "error: $Text"; exit 1 }

# Runs a program; a failure of it ends the script.
function Invoke-Checked([string]$Program, [string[]]$Arguments) {
    & $Program @Arguments
    if ($LASTEXITCODE -ne 0) { Stop-Here "$Program $($Arguments -join ' ') failed: see above" }
}

# Returns a Python that Woolly runs on. The one of the Microsoft Store's placeholder prints nothing and fails.
function Find-Python {
    foreach ($name in "python", "python3", "py") {
        if (-not (Get-Command $name -ErrorAction SilentlyContinue)) { continue }
        & $name -c "import sys; sys.exit(sys.version_info < (3, 10))" 2>$null
        if ($LASTEXITCODE -eq 0) { return $name }
    }
    Stop-Here "neither uv, nor pipx, nor Python 3.10 or newer is here: install one of them, then start this again"
}

# Returns a uv that was installed by pip.
function Get-Uv {
    $place = Join-Path $env:LOCALAPPDATA "woolly\uv"
    $uv = Join-Path $place "Scripts\uv.exe"
    if (Test-Path $uv) { return $uv }
    $python = Find-Python
    Say "installing uv into $place"
    Invoke-Checked $python @("-m", "venv", "--clear", $place) | Out-Host
    $pip = @("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--only-binary", ":all:", "uv")
    Invoke-Checked (Join-Path $place "Scripts\python.exe") $pip | Out-Host
    return $uv
}

$wanted = switch -Regex ($What) {
    "^$" { "woolly-llm"; break }
    "\.whl$" { $What; break }
    "^[0-9]" { "woolly-llm==$What"; break }
    default { Stop-Here "$What is neither a version nor a wheel" }
}
if (-not (Get-Command uv -ErrorAction SilentlyContinue) -and (Get-Command pipx -ErrorAction SilentlyContinue)) {
    Say "installing $wanted by pipx"
    Invoke-Checked "pipx" @("install", "--force", $wanted)
    Say 'done: try "woolly run hello"; "pipx uninstall woolly-llm" removes it'
    exit 0
}
$uv = if (Get-Command uv -ErrorAction SilentlyContinue) { "uv" } else { Get-Uv }
Say "installing $wanted by uv"
Invoke-Checked $uv @("tool", "install", "--force", $wanted)
$folder = & $uv tool dir --bin
if (($env:PATH -split ";") -notcontains $folder) { Say "$folder is not on the path: add it, or start $folder\woolly.exe" }
Say "done: try ""woolly run hello""; ""$uv tool uninstall woolly-llm"" removes it"
