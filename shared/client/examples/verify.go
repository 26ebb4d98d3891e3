// Verifies a request as it arrived: SECRET=whsec_... go run verify.go headers body
// The file "headers" has one "name: value" a line, and "body" the raw body.
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

const tolerance = 5 * time.Minute

func isSigned(secret string, header http.Header, body []byte) bool {
	sentAt, err := strconv.ParseInt(header.Get("webhook-timestamp"), 10, 64)
	if err != nil || time.Since(time.Unix(sentAt, 0)).Abs() > tolerance {
		return false
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return false
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%d.", header.Get("webhook-id"), sentAt)
	mac.Write(body)
	wanted := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	isFound := false
	for _, given := range strings.Split(header.Get("webhook-signature"), " ") {
		isFound = hmac.Equal([]byte(wanted), []byte(given)) || isFound
	}
	return isFound
}

func main() {
	header := http.Header{}
	lines, err := os.ReadFile(os.Args[1])
	must(err)
	for _, line := range strings.Split(string(lines), "\n") {
		if name, value, isHeader := strings.Cut(strings.TrimRight(line, "\r"), ": "); isHeader {
			header.Set(name, value)
		}
	}
	body, err := os.ReadFile(os.Args[2])
	must(err)
	if !isSigned(os.Getenv("SECRET"), header, body) {
		fmt.Println("not signed by the service")
		os.Exit(1)
	}
	fmt.Println("verified")
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
