#!/bin/sh
# Prints a Python that can run liveedge, or says what is missing. $PYTHON is tried alone when set.
# An interpreter is run, not only found: a version manager's shim may exist and not work.
usable='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'
candidates=${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3}
for candidate in $candidates; do
    if "$candidate" -c "$usable" >/dev/null 2>&1; then
        "$candidate" -c 'import sys; print(sys.executable)'
        exit 0
    fi
done
echo "liveedge needs Python 3.11 or newer with its venv module; tried: $candidates." >&2
echo "Install one (Debian and Ubuntu: apt-get install python3 python3-venv) or name it: make PYTHON=/path/to/python3.12 ..." >&2
exit 1
