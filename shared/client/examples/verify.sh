#!/usr/bin/env bash
# Verifies a request as it arrived, with openssl alone: SECRET=whsec_... bash verify.sh headers body
# The file "headers" has one "name: value" a line, and "body" the raw body. Other users of the machine can see the secret
# meanwhile.
headers=$1 body=$2 tolerance_seconds=300
header() { grep -i "^$1: " "$headers" | cut -d ' ' -f 2- | tr -d '\r'; }
hex() { od -An -v -tx1 | tr -d ' \n'; }
sent_at=$(header webhook-timestamp)
signed() { printf '%s.%s.' "$(header webhook-id)" "$sent_at" && cat "$body"; }
key=$(printf %s "${SECRET#whsec_}" | openssl base64 -d -A | hex)
wanted=$(signed | openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" -binary | openssl base64 -A)

# Nothing but digits may stand in a calculation of the shell.
[[ $sent_at =~ ^[0-9]{1,12}$ ]] || exit 1
away=$(($(date +%s) - 10#$sent_at))
[ "${away#-}" -le "$tolerance_seconds" ] &&
  header webhook-signature | tr ' ' '\n' | grep -qxF "v1,$wanted" && echo verified
