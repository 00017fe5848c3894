package files

import (
	"bytes"
	"encoding/binary"
)

// sniffRIFF knows the formats that are chunks with a four-letter form: RIFF and its
// 64-bit kin, and the older FORM.
func sniffRIFF(h []byte) (string, Kind, bool) {
	if len(h) < 12 {
		return "", "", false
	}
	form := string(h[8:12])
	switch string(h[:4]) {
	case "RIFF", "RF64", "BW64":
		switch form {
		case "WAVE":
			return "audio/wav", KindAudio, true
		case "AVI ":
			return "video/x-msvideo", KindVideo, true
		case "WEBP":
			return "image/webp", KindImage, true
		}
	case "FORM":
		if form == "AIFF" || form == "AIFC" {
			return "audio/aiff", KindAudio, true
		}
	}
	return "", "", false
}

// sniffISO knows the family of MP4: boxes with a size and a four-letter type, of
// which the first names the brands. An audio track alone in a general brand cannot
// be told from a video by its header.
func sniffISO(h []byte) (string, Kind, bool) {
	if len(h) < 12 {
		return "", "", false
	}
	size := binary.BigEndian.Uint32(h)
	if size != 1 && (size < 8 || size > 1<<28) {
		return "", "", false
	}
	switch string(h[4:8]) {
	case "moov", "mdat", "wide", "pnot": // QuickTime from before brands
		return "video/quicktime", KindVideo, true
	case "ftyp":
	default:
		return "", "", false
	}
	brands := h[8:min(uint32(len(h)), max(size, 12))]
	if mediaType, kind, ok := brand(string(brands[:4])); ok && mediaType != heif {
		return mediaType, kind, true
	}
	// A general brand first: the compatible ones say more. Bytes 4 to 8 are a version.
	still := false
	for i := 8; i+4 <= len(brands); i += 4 {
		mediaType, kind, ok := brand(string(brands[i : i+4]))
		if ok && kind == KindImage && mediaType != heif {
			return mediaType, kind, true
		}
		still = still || mediaType == heif
	}
	if _, _, ok := brand(string(brands[:4])); ok || still && brands[0] == 'm' {
		return heif, KindImage, true
	}
	return "video/mp4", KindVideo, true
}

const (
	heif = "image/heif"
	tiff = "image/tiff"
)

// brand is what a brand says for certain.
func brand(b string) (string, Kind, bool) {
	switch b {
	case "M4A ", "M4B ", "M4P ", "F4A ", "F4B ":
		return "audio/mp4", KindAudio, true
	case "qt  ":
		return "video/quicktime", KindVideo, true
	case "avif", "avis":
		return "image/avif", KindImage, true
	case "heic", "heix", "heim", "heis", "hevc", "hevx", "hevm", "hevs":
		return "image/heic", KindImage, true
	case "mif1", "msf1":
		return heif, KindImage, true
	case "crx ":
		return "image/x-canon-cr3", KindImage, true
	case "jpx ", "jp2 ":
		return "image/jp2", KindImage, true
	}
	if b[:3] == "3gp" || b[:3] == "3g2" {
		return "video/3gpp", KindVideo, true
	}
	return "", "", false
}

// sniffMatroska tells WebM from Matroska by the DocType element of the EBML header.
func sniffMatroska(h []byte) (string, Kind, bool) {
	if !bytes.HasPrefix(h, []byte("\x1a\x45\xdf\xa3")) {
		return "", "", false
	}
	head := h[:min(len(h), 128)]
	if i := bytes.Index(head, []byte("\x42\x82")); i >= 0 && bytes.HasPrefix(head[min(i+3, len(head)):], []byte("webm")) {
		return "video/webm", KindVideo, true
	}
	return "video/x-matroska", KindVideo, true
}

// sniffOgg goes by the codec that the first page names.
func sniffOgg(h []byte) (string, Kind, bool) {
	const fixed = 27 // bytes of a page header before its table of segments
	if !bytes.HasPrefix(h, []byte("OggS\x00")) {
		return "", "", false
	}
	if len(h) > fixed-1 {
		packet := h[min(len(h), fixed+int(h[fixed-1])):]
		switch {
		case bytes.HasPrefix(packet, []byte("OpusHead")):
			return "audio/opus", KindAudio, true
		case bytes.HasPrefix(packet, []byte("\x80theora")), bytes.HasPrefix(packet, []byte("OVP80")), bytes.HasPrefix(packet, []byte("fishead\x00")):
			return "video/ogg", KindVideo, true
		}
	}
	return "audio/ogg", KindAudio, true
}

// sniffBMP wants more than "BM": the reserved bytes and a known size of header.
func sniffBMP(h []byte) (string, Kind, bool) {
	if len(h) < 18 || h[0] != 'B' || h[1] != 'M' {
		return "", "", false
	}
	switch binary.LittleEndian.Uint32(h[14:]) {
	case 12, 16, 40, 52, 56, 64, 108, 124:
		return "image/bmp", KindImage, true
	}
	return "", "", false
}

// sniffMPEGTS wants the sync byte at the start of three packets, or of all that the
// header holds if those are two; a packet may have a time stamp before it (m2ts).
func sniffMPEGTS(h []byte) (string, Kind, bool) {
	for _, shape := range []struct{ first, packet int }{{0, 188}, {4, 192}, {0, 204}} {
		seen := 0
		for at := shape.first; at < len(h) && h[at] == 'G' && seen < 3; at += shape.packet {
			seen++
		}
		if seen == 3 || seen == 2 && len(h) <= shape.first+2*shape.packet {
			return "video/mp2t", KindVideo, true
		}
	}
	return "", "", false
}

// sniffMPEGAudio knows MP3 with and without an ID3 tag, and AAC in ADTS frames. Two
// sync bytes are weak, so every field of the first frame must be possible, and the
// next frame must begin where the first one ends, if the header reaches so far.
func sniffMPEGAudio(h []byte) (string, Kind, bool) {
	if len(h) >= 10 && string(h[:3]) == "ID3" && h[3] >= 2 && h[3] <= 4 && h[4] != 0xff &&
		(h[6]|h[7]|h[8]|h[9])&0x80 == 0 {
		size := 10 + int(h[6])<<21 + int(h[7])<<14 + int(h[8])<<7 + int(h[9])
		if size < len(h) && adtsLength(h[size:]) > 0 {
			return "audio/aac", KindAudio, true
		}
		if size < len(h) && bytes.HasPrefix(h[size:], []byte("fLaC")) {
			return "audio/flac", KindAudio, true
		}
		return "audio/mpeg", KindAudio, true
	}
	if n := adtsLength(h); n > 0 && (n >= len(h) || adtsLength(h[n:]) > 0 || len(h)-n < 7) {
		return "audio/aac", KindAudio, true
	}
	if n := mpegLength(h); n > 0 && (n >= len(h) || mpegLength(h[n:]) > 0 || len(h)-n < 4) {
		return "audio/mpeg", KindAudio, true
	}
	return "", "", false
}

// adtsLength is the length of the ADTS frame at the beginning of h, 0 if there is
// none.
func adtsLength(h []byte) int {
	if len(h) < 7 || h[0] != 0xff || h[1]&0xf6 != 0xf0 || h[2]>>2&0xf > 12 {
		return 0
	}
	n := int(h[3]&3)<<11 | int(h[4])<<3 | int(h[5])>>5
	if n < 7 {
		return 0
	}
	return n
}

// mpegLength is the length of the MPEG audio frame (layer II or III) at the
// beginning of h, 0 if there is none.
func mpegLength(h []byte) int {
	if len(h) < 4 || h[0] != 0xff || h[1]&0xe0 != 0xe0 {
		return 0
	}
	version, layer := h[1]>>3&3, h[1]>>1&3 // version: 3 is MPEG 1, 2 is MPEG 2, 0 is 2.5; layer: 1 is III, 2 is II
	rate, sampling := h[2]>>4, h[2]>>2&3
	if version == 1 || layer == 0 || layer == 3 || rate == 0 || rate == 15 || sampling == 3 {
		return 0
	}
	kbits := [...][16]int{
		{0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320},  // MPEG 1 layer III
		{0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384}, // MPEG 1 layer II
		{0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160},      // MPEG 2 and 2.5, both
	}
	table, samples := 2, 1152
	if version == 3 {
		table = int(layer) - 1
	} else if layer == 1 {
		samples = 576
	}
	hertz := [...]int{44100, 48000, 32000}[sampling]
	switch version {
	case 2:
		hertz /= 2
	case 0:
		hertz /= 4
	}
	padding := int(h[2] >> 1 & 1)
	return samples/8*kbits[table][rate]*1000/hertz + padding
}
