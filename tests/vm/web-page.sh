# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A browser shows what the VMs are doing: the map, the packets of a connection, the objects of a device.
# lab: fabric=local
# lab: timeout=400
. "$LAB_LIB"

"$VRNICCTL" web > "$LAB_DIR/address" &
server=$!
trap "kill $server" EXIT
has_address() { grep -q token= "$LAB_DIR/address"; }
within 20 has_address || fail "vrnicctl web prints no address"

# stress VM ARGUMENTS...: generates traffic until /tmp/enough exists in this VM.
stress() {
	on -t $((300 * LAB_SLOWNESS)) "$1" sh -c "rm -f /tmp/enough; until [ -e /tmp/enough ]; do
		vrnic-stress --device $DEV --gid $GID_INDEX ${*:2} --seconds 10 --qps 2 || exit 1
	done"
}
stress b --server &
listener=$!
stress a --client "$IP_b" &
client=$!

# Chromium reads commands from descriptor 3 and writes answers to descriptor 4. It needs no sandbox, because it only
# shows our own page, and the sandbox refuses root, which may run the tests.
python3 - "$(grep -o 'http://[^ ]*' "$LAB_DIR/address")" "$LAB_DIR/browser" $((60 * LAB_SLOWNESS)) <<'PY' || fail "the page does not show the lab"
import atexit, json, os, subprocess, sys, time

address, profile, patience = sys.argv[1], sys.argv[2], int(sys.argv[3])
(command_end, commands), (answers, answer_end) = os.pipe(), os.pipe()
browser = subprocess.Popen(
    ["sh", "-c", f'exec chromium "$@" 3<&{command_end} 4>&{answer_end}', "sh", "--headless=new", "--remote-debugging-pipe",
     "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage",
     f"--user-data-dir={profile}", "--window-size=1280,1400", "about:blank"],
    pass_fds=(command_end, answer_end), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
atexit.register(browser.kill)
os.close(answer_end)
rest, last, session = b"", 0, None


def call(method, **parameters):
    global rest, last
    last += 1
    message = {"id": last, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
    os.write(commands, json.dumps(message).encode() + b"\0")
    while True:
        while b"\0" not in rest:
            rest += os.read(answers, 1 << 20) or sys.exit("Chromium ended")
        one, _, rest = rest.partition(b"\0")
        one = json.loads(one)
        if one.get("id") == last:
            assert "error" not in one, one
            return one["result"]


def value(expression):
    return call("Runtime.evaluate", expression=expression)["result"].get("value")


def until(what, expression):
    end = time.monotonic() + patience
    while value(f"(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()") is not True:
        if time.monotonic() > end:
            sys.exit(f"not shown: {what}\n{value('document.body.innerText')}")
        time.sleep(0.2)
    print("shown:", what)


target = call("Target.createTarget", url="about:blank")["targetId"]
session = call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
call("Page.navigate", url=address)
label = lambda begin: f"[...document.querySelectorAll('[aria-label]')].some((one) => one.getAttribute('aria-label').startsWith('{begin}'))"
until("that the page is live", "document.querySelector('#connection').textContent === 'live'")
for device in "ab":
    until(f"RNIC {device} on the map", label(f"RNIC {device} of VM"))
until("that a and b are connected", label("a and b: "))
value("location.hash = 'timeline'")
until("packets and acknowledgements between them",
      "(() => { const steps = [...document.querySelectorAll('.sequence .step')].map((one) => one.getAttribute('aria-label'));"
      " return steps.some((one) => /: (SEND|RDMA|FETCH|CMP).* PSN /i.test(one)) && steps.some((one) => /: Acknowledge PSN /.test(one)) })()")
value("location.hash = 'objects/a'")
until("the queue pairs of a", "document.querySelector('#view').textContent.includes('RTS')")
PY
on a touch /tmp/enough
wait $client || fail "the client failed while the page watched it"
# It waits for the next client.
on b pkill -x vrnic-stress || true
wait $listener || true
