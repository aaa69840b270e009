#!/usr/bin/env bash
# The webhook's certificate without cert-manager: an authority and a server's certificate of ten years.
#
#   deploy/webhook/certs.sh DIR            writes ca.crt, tls.crt and tls.key there
#   deploy/webhook/certs.sh DIR --apply    then puts them into the cluster: the Secret, and caBundle of the webhook
set -euo pipefail

directory="${1:?name a directory}"
name=augury-doctor.augury-doctor.svc
mkdir -p "$directory"
cd "$directory"
umask 077

openssl ecparam -name prime256v1 -genkey -noout -out ca.key
openssl req -x509 -new -sha256 -days 3650 -key ca.key -out ca.crt -subj "/CN=augury-doctor" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign"
openssl ecparam -name prime256v1 -genkey -noout -out tls.key
openssl req -new -sha256 -key tls.key -out tls.csr -subj "/CN=$name"
printf 'subjectAltName=DNS:%s,DNS:%s.cluster.local\nextendedKeyUsage=serverAuth\n' "$name" "$name" > tls.ext
openssl x509 -req -sha256 -days 3650 -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile tls.ext -out tls.crt
rm -f ca.key ca.srl tls.csr tls.ext # nobody signs with it again

if [ "${2:-}" = --apply ]; then
    kubectl -n augury-doctor create secret tls augury-doctor-tls --cert=tls.crt --key=tls.key --dry-run=client -o yaml |
        kubectl apply -f -
    kubectl patch validatingwebhookconfiguration augury-doctor --type=json -p \
        "[{\"op\": \"add\", \"path\": \"/webhooks/0/clientConfig/caBundle\", \"value\": \"$(base64 < ca.crt | tr -d '\n')\"}]"
fi
