#!/bin/bash
# Make the root file system of one role's image: tree.sh ROLE WHEELS OUT.
#
# ROLE is the extra of pyproject.toml that says what the role needs; WHEELS holds our own wheel (wheel.sh). OUT gets a
# Python without what no service needs, the wheel, its requirements at the versions of constraints.txt, everything
# compiled, and the shared libraries that all of it loads: no shell, no package manager. The Dockerfile and the test
# cluster's images are made by it. PYTHON: the interpreter that goes in, and for which the wheel was built (python3).
# Fails where a requirement is not pinned, or a library is not on this machine.
set -euo pipefail
role=$1
wheels=$(cd "$2" && pwd)
out=$(mkdir -p "$3" && cd "$3" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
[ -z "$(ls -A "$out")" ] || { echo "$out: is not empty; a tree is made from nothing" >&2; exit 1; }

ask() { "$python" -c "import os, site, sys, sysconfig; print($1)"; }
interpreter=$(ask 'os.path.realpath(sys.executable)')
standard=$(ask 'sysconfig.get_path("stdlib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix})')
packages=$("$interpreter" -c 'import site; print(site.getsitepackages()[0])')

# ---- what every root file system has ----------------------------------------------------------------------------------
mkdir -p "$out"/{usr/bin,usr/lib,usr/lib64,proc,sys,dev,etc,root,run,var/lib,home}
mkdir -m 1777 "$out/tmp"
ln -s usr/bin "$out/bin"
ln -s usr/lib "$out/lib"
ln -s usr/lib64 "$out/lib64"
ln -s ../run "$out/var/run"
printf 'root:x:0:0:root:/root:/sbin/nologin\npartage:x:65532:65532:partage:/home:/sbin/nologin\n' >"$out/etc/passwd"
printf 'root:x:0:\npartage:x:65532:\n' >"$out/etc/group"
printf 'passwd: files\ngroup: files\nhosts: files dns\n' >"$out/etc/nsswitch.conf"

# ---- Python and the packages ----------------------------------------------------------------------------------------------
mkdir -p "$out$(dirname "$interpreter")" "$out$standard" "$out$packages"
cp "$interpreter" "$out$interpreter"
tar -c -C "$standard" --exclude=__pycache__ --exclude='./site-packages' --exclude='./dist-packages' \
	--exclude='./config-*' --exclude='*.a' --exclude='./test' --exclude='*/test' --exclude='*/tests' \
	--exclude='./idlelib' --exclude='./tkinter' --exclude='_tkinter*' --exclude='./turtledemo' --exclude='./ensurepip' \
	--exclude='./lib2to3' --exclude='./pydoc_data' --exclude='./venv' --exclude='./lib-dynload/_test*' \
	--exclude='./lib-dynload/_xx*' --exclude='./lib-dynload/_ctypes_test*' --exclude='./lib-dynload/_curses*' \
	--exclude='./lib-dynload/readline*' --exclude='./lib-dynload/nis*' --exclude='./lib-dynload/_*dbm*' \
	--exclude='./lib-dynload/_sqlite3*' --exclude='./sqlite3' --exclude='./dbm' . | tar -x -C "$out$standard"
! command -v strip >/dev/null || find "$out$standard/lib-dynload" -name '*.so' -exec strip --strip-unneeded {} +
"$python" -m pip install --quiet --disable-pip-version-check --no-warn-script-location --no-compile --only-binary :all: \
	--constraint "$here/constraints.txt" --target "$out$packages" "$(ls "$wheels"/partage-*.whl)[$role]"
rm -rf "$out$packages/bin"
[ "$role" = agent ] || rm -rf "$out$packages/partage/_native" "$out$packages/partage_plugin"

# Programs: without the caller's PYTHON* variables, without the directory where they are started.
"$python" - "$out$packages" "$out/usr/bin" "$interpreter" "$here/constraints.txt" <<'P'
import sys
from importlib.metadata import distributions
from pathlib import Path

packages, programs, interpreter, constraints = sys.argv[1:]
pinned = {line.split("==")[0].strip() for line in Path(constraints).read_text().splitlines() if "==" in line}
for found in distributions(path=[packages]):
    name = found.metadata["Name"].lower().replace("_", "-")
    if name not in pinned | {"partage"}:
        sys.exit(f"{name} {found.version}: not pinned; add it to {constraints}")
    for entry in found.entry_points.select(group="console_scripts") if name == "partage" else ():
        module, _, function = entry.value.partition(":")
        if (Path(packages) / module.partition(".")[0]).is_dir():
            program = Path(programs, entry.name)
            program.write_text(f"#!{interpreter} -I\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n")
            program.chmod(0o755)
P
# Checked by nobody at run time: the sources cannot change in a read-only image.
"$interpreter" -m compileall -q -j 0 --invalidation-mode unchecked-hash -s "$out" -p / "$out$standard" "$out$packages"

# ---- shared libraries, at the paths where the loader finds them --------------------------------------------------------
mapfile -t objects < <(find "$out" -type f -name '*.so*'; echo "$interpreter")
libraries=$(ldd "${objects[@]}" 2>/dev/null | sed -n 's/.*=> \(\/[^ ]*\) (0x.*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) (0x.*/\1/p' | sort -u)
missing=$(ldd "${objects[@]}" 2>/dev/null | sed -n 's/[[:space:]]*\([^ ]*\) => not found/\1/p' | sort -u)
[ -z "$missing" ] || { echo "not on this machine, needed by the tree of $role: $missing" >&2; exit 1; }
for path in $libraries; do
	case $path in "$out"/*) continue ;; esac
	mkdir -p "$out$(dirname "$path")"
	cp --dereference "$path" "$out$path"
done
chmod -R u+rwX,go+rX,go-w "$out"
chmod 1777 "$out/tmp"
