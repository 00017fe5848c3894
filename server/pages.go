package server

import (
	"encoding/base64"
	"strings"
)

// Lists are cut into pages by number and by size. A page token says, in a form that
// is nobody's business, after which element the next page begins; it stays good when
// elements come and go.

const (
	defaultPage = 100
	largestPage = 1000
	tokenPrefix = "v1:"
)

type pageRequest interface {
	GetPageSize() int32
	GetPageToken() string
}

// readPage returns how many elements are asked for, and after which one.
func readPage(req pageRequest) (size int, after string, err error) {
	switch n := int(req.GetPageSize()); {
	case n < 0:
		return 0, "", badField("page_size", "is %d, and must not be negative", n)
	case n == 0:
		size = defaultPage
	default:
		size = min(n, largestPage)
	}
	if req.GetPageToken() == "" {
		return size, "", nil
	}
	text, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	after, ok := strings.CutPrefix(string(text), tokenPrefix)
	if err != nil || !ok || after == "" {
		return 0, "", badField("page_token", "was not given by this server")
	}
	return size, after, nil
}

func pageToken(after string) string {
	if after == "" {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString([]byte(tokenPrefix + after))
}

// pageOf cuts a page out of a whole list that is sorted by name. measure gives an
// element's name and about how many bytes it needs.
func pageOf[T any](all []T, req pageRequest, measure func(T) (name string, bytes int)) (page []T, next string, err error) {
	size, after, err := readPage(req)
	if err != nil {
		return nil, "", err
	}
	total := 0
	last := ""
	for _, t := range all {
		name, bytes := measure(t)
		if after != "" && name <= after {
			continue
		}
		if total += bytes; len(page) > 0 && (len(page) == size || total > maxAnswer) {
			return page, pageToken(last), nil
		}
		page, last = append(page, t), name
	}
	return page, "", nil
}
