# Verifies a request as it arrived: SECRET=whsec_... python3 verify.py headers body
# The file "headers" has one "name: value" a line, and "body" the raw body.
import base64
import hashlib
import hmac
import os
import sys
import time

TOLERANCE_SECONDS = 300


def is_signed(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """Names of headers are in lower case."""
    sent_at = headers.get("webhook-timestamp", "")
    if not sent_at.isdigit() or abs(time.time() - int(sent_at)) > TOLERANCE_SECONDS:
        return False
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers.get('webhook-id', '')}.{sent_at}.".encode() + body
    wanted = "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    given = headers.get("webhook-signature", "").split(" ")
    return any([hmac.compare_digest(wanted, one) for one in given])


with open(sys.argv[1], encoding="utf-8") as file:
    lines = [line.rstrip("\r\n").split(": ", 1) for line in file if ": " in line]
with open(sys.argv[2], "rb") as file:
    verified = is_signed(os.environ["SECRET"], {name.lower(): value for name, value in lines}, file.read())
print("verified" if verified else "not signed by the service")
sys.exit(0 if verified else 1)
