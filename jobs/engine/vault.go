package engine

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/macexec/macexec/jobs"
)

// vault seals secret arguments with a key that is not in the store, and gives
// digests of them that nobody without the key can guess (promise G11).
type vault struct {
	aead   cipher.AEAD
	macKey []byte
}

func newVault(key []byte) (*vault, error) {
	if len(key) != 32 {
		return nil, fmt.Errorf("the secret key has %d bytes, not 32", len(key))
	}
	sealKey, err := hkdf.Key(sha256.New, key, nil, "macexec v1 seal", 32)
	if err != nil {
		return nil, err
	}
	macKey, err := hkdf.Key(sha256.New, key, nil, "macexec v1 digest", 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(sealKey)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, err
	}
	return &vault{aead: aead, macKey: macKey}, nil
}

// seal encrypts one secret for one place of one job; it opens nowhere else.
func (v *vault) seal(jobID, pointer, value string) []byte {
	//nolint:gosec // this AEAD makes its own random nonce and wants none
	return v.aead.Seal(nil, nil, []byte(value), []byte(jobID+"\x00"+pointer))
}

func (v *vault) open(jobID, pointer string, sealed []byte) (string, error) {
	plain, err := v.aead.Open(nil, nil, sealed, []byte(jobID+"\x00"+pointer))
	if err != nil {
		return "", jobs.Errorf(jobs.CodeInternal, "the secret argument %s of job %s cannot be opened with this host's key", pointer, jobID)
	}
	return string(plain), nil
}

func (v *vault) openAll(j *jobs.Job) (map[string]string, error) {
	secrets := make(map[string]string, len(j.Sealed))
	for pointer, sealed := range j.Sealed {
		value, err := v.open(j.ID, pointer, sealed)
		if err != nil {
			return nil, err
		}
		secrets[pointer] = value
	}
	return secrets, nil
}

// byArgument names secrets by argument instead of by JSON pointer.
func byArgument(secrets map[string]string) map[string]string {
	named := make(map[string]string, len(secrets))
	for pointer, value := range secrets {
		named[strings.TrimPrefix(pointer, "/")] = value
	}
	return named
}

// digest stands for a secret in the fingerprint.
func (v *vault) digest(pointer, value string) string {
	mac := hmac.New(sha256.New, v.macKey)
	mac.Write([]byte(pointer))
	mac.Write([]byte{0})
	mac.Write([]byte(value))
	return hex.EncodeToString(mac.Sum(nil))
}

// masked replaces every secret in a text by stars.
func masked(text string, secrets map[string]string) string {
	for _, part := range parts(secrets) {
		text = strings.ReplaceAll(text, part, stars)
	}
	return text
}

const stars = "******"

// parts are the texts to mask: every secret, and of one with several lines, as a key
// in PEM, every line that is long enough to be one, since tools print line by line.
// The longest come first, so that no part of a whole is left.
func parts(secrets map[string]string) []string {
	var list []string
	for _, value := range secrets {
		if value != "" {
			list = append(list, value)
		}
		lines := strings.FieldsFunc(value, func(r rune) bool { return r == '\n' || r == '\r' })
		for _, line := range lines {
			if len(lines) > 1 && len(strings.TrimSpace(line)) >= minSecretLine {
				list = append(list, line)
			}
		}
	}
	slices.SortFunc(list, func(a, b string) int { return len(b) - len(a) })
	return list
}

// minSecretLine keeps masking from starring out every brace of a secret in JSON.
const minSecretLine = 4

// maskedBytes is masked for a piece of a raw log. A secret that a tool prints in two
// pieces is not recognised; a tool that is given secrets should not print them.
func maskedBytes(data []byte, secrets map[string]string) []byte {
	for _, part := range parts(secrets) {
		data = bytes.ReplaceAll(data, []byte(part), []byte(stars))
	}
	return data
}

func newRandomKey() string { return "auto-" + strings.ToLower(rand.Text()) }
