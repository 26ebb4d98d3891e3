<?php
// Verifies a request as it arrived: SECRET=whsec_... php verify.php headers body
// The file "headers" has one "name: value" a line, and "body" the raw body. In a page, file_get_contents('php://input')
// is the raw body, and $_SERVER['HTTP_WEBHOOK_ID'] and so on are the headers.
const TOLERANCE_SECONDS = 300;

/** Names of headers are in lower case. */
function isSigned(string $secret, array $headers, string $body): bool
{
    $sentAt = $headers['webhook-timestamp'] ?? '';
    if (!preg_match('/^[0-9]+$/D', $sentAt) || abs(time() - (int) $sentAt) > TOLERANCE_SECONDS) {
        return false;
    }
    $key = base64_decode(substr($secret, strlen('whsec_')));
    $signed = ($headers['webhook-id'] ?? '') . ".$sentAt.$body";
    $wanted = 'v1,' . base64_encode(hash_hmac('sha256', $signed, $key, true));
    $isFound = false;
    foreach (explode(' ', $headers['webhook-signature'] ?? '') as $given) {
        $isFound = hash_equals($wanted, $given) || $isFound;
    }
    return $isFound;
}

$headers = [];
foreach (file($argv[1], FILE_IGNORE_NEW_LINES) as $line) {
    [$name, $value] = explode(': ', rtrim($line, "\r"), 2) + ['', ''];
    $headers[strtolower($name)] = $value;
}
$verified = isSigned(getenv('SECRET'), $headers, file_get_contents($argv[2]));
echo $verified ? "verified\n" : "not signed by the service\n";
exit($verified ? 0 : 1);
