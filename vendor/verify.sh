#!/bin/sh
# Compares the pinned package's llama.cpp with upstream's commit, file by file, by git's hashes of their contents.
#
#   vendor/verify.sh [FOLDER [REPOSITORY [COMMIT]]]
#
# Prints the packaged files that are different in upstream's commit, or missing from it, and exits with 1 if there are
# any. Files that the package leaves out are only counted. Needs git, a network, and some hundred MB: upstream's history
# is fetched without the contents of files.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
repository=${2:-https://github.com/ggml-org/llama.cpp}
commit=${3:-785322d17f}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ $# -ge 1 ]; then
    folder=$1
else
    # The package's folder, where cargo unpacked it.
    manifest=$(cargo metadata --locked --format-version 1 --manifest-path "$here/Cargo.toml" |
        sed -n 's/.*"manifest_path":"\([^"]*llama-cpp-sys-4-[^"]*\)".*/\1/p')
    folder=$(dirname "$manifest")/llama.cpp
fi

git clone --quiet --bare --filter=blob:none "$repository" "$work/upstream"
git -C "$work/upstream" -c core.quotepath=off ls-tree -r "$commit" |
    awk -F '\t' '{ split($1, fields, " "); print fields[3] " " $2 }' | LC_ALL=C sort >"$work/theirs"
(
    cd "$folder"
    find . -type f | sed 's|^\./||' | LC_ALL=C sort >"$work/names"
    git hash-object --no-filters --stdin-paths <"$work/names" | paste -d ' ' - "$work/names"
) | LC_ALL=C sort >"$work/ours"

LC_ALL=C comm -23 "$work/ours" "$work/theirs" | cut -d ' ' -f 2- >"$work/differ"
cat "$work/differ"
packaged=$(wc -l <"$work/ours")
differ=$(wc -l <"$work/differ")
all=$(wc -l <"$work/theirs")
echo "$((packaged - differ)) of $packaged packaged files are those of $commit, which has $all"
[ "$differ" -eq 0 ]
