#!/usr/bin/env bash
# Rebuilds src/quantry/report/assets/charts.min.js from the npm packages pinned here. Needs node and npm.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/charts.mjs" "$work"
cd "$work"
npm init -y >/dev/null
npm install --silent echarts@6.1.0 esbuild@0.28
npx esbuild charts.mjs --bundle --minify --format=iife --target=es2020 --legal-comments=none --outfile=charts.min.js
target="$here/../../src/quantry/report/assets/charts.min.js"
{ head -1 "$target"; cat charts.min.js; } > new.js
mv new.js "$target"
