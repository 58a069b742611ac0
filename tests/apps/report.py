# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Makes a table and report.json of what run.sh found. Fails if a program failed that should not.
# usage: report.py DIRECTORY

import json
import pathlib
import sys

out = pathlib.Path(sys.argv[1])
fields = ("program", "path", "result", "why")
results = [dict(zip(fields, line.split("\t"))) for line in (out / "results.tsv").read_text().splitlines()]
(out / "report.json").write_text(json.dumps({"results": results}, indent=2) + "\n")
if not results:
    sys.exit("no program has this name")

paths = list(dict.fromkeys(result["path"] for result in results))
columns = {"local": "vrnic, local", "roce": "vrnic, roce", "infiniband": "vrnic, infiniband", "rxe": "rxe"}
words = {"ok": "ok", "known": "fails", "failed": "FAILED"}
programs = list(dict.fromkeys(result["program"] for result in results))
width = max(map(len, programs))
print()
print("program".ljust(width), *(columns[path].ljust(17) for path in paths))
for program in programs:
    of_path = {result["path"]: words[result["result"]] for result in results if result["program"] == program}
    print(program.ljust(width), *(of_path.get(path, "").ljust(17) for path in paths))
print()
for result in results:
    if result["result"] != "ok":
        print(f"{result['path']}: {result['program']}: {result['why']}")
failed = sum(result["result"] == "failed" for result in results)
print(f"{len(results)} runs, {failed} failed; {out}/report.json")
sys.exit(failed > 0)
