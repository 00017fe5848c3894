package files

import (
	"path"
	"strings"
)

// ByExtension says what a name claims to be, for comparing with what [Sniff] found;
// false if the extension claims nothing that is known here. The name decides
// nothing else.
func ByExtension(name string) (mediaType string, kind Kind, ok bool) {
	switch strings.ToLower(path.Ext(name)) {
	case ".png", ".apng":
		return "image/png", KindImage, true
	case ".jpg", ".jpeg", ".jpe":
		return "image/jpeg", KindImage, true
	case ".gif":
		return "image/gif", KindImage, true
	case ".webp":
		return "image/webp", KindImage, true
	case ".tif", ".tiff":
		return tiff, KindImage, true
	case ".bmp":
		return "image/bmp", KindImage, true
	case ".heic":
		return "image/heic", KindImage, true
	case ".heif":
		return heif, KindImage, true
	case ".avif":
		return "image/avif", KindImage, true
	case ".ico":
		return "image/vnd.microsoft.icon", KindImage, true
	case ".icns":
		return "image/x-icns", KindImage, true
	case ".wav", ".wave":
		return "audio/wav", KindAudio, true
	case ".mp3":
		return "audio/mpeg", KindAudio, true
	case ".flac":
		return "audio/flac", KindAudio, true
	case ".ogg", ".oga":
		return "audio/ogg", KindAudio, true
	case ".opus":
		return "audio/opus", KindAudio, true
	case ".aac":
		return "audio/aac", KindAudio, true
	case ".m4a", ".m4b":
		return "audio/mp4", KindAudio, true
	case ".aif", ".aiff", ".aifc":
		return "audio/aiff", KindAudio, true
	case ".caf":
		return "audio/x-caf", KindAudio, true
	case ".mp4", ".m4v":
		return "video/mp4", KindVideo, true
	case ".mov", ".qt":
		return "video/quicktime", KindVideo, true
	case ".mkv":
		return "video/x-matroska", KindVideo, true
	case ".webm":
		return "video/webm", KindVideo, true
	case ".avi":
		return "video/x-msvideo", KindVideo, true
	case ".ts", ".mts", ".m2ts":
		return "video/mp2t", KindVideo, true
	case ".mpg", ".mpeg":
		return "video/mpeg", KindVideo, true
	case ".ogv":
		return "video/ogg", KindVideo, true
	case ".svg":
		return "image/svg+xml", KindXML, true
	case ".xml", ".plist":
		return "application/xml", KindXML, true
	case ".pdf":
		return "application/pdf", KindDocument, true
	case ".html", ".htm":
		return "text/html", KindText, true
	case ".txt", ".md", ".csv", ".json", ".log", ".srt", ".vtt":
		return "text/plain", KindText, true
	}
	return "", "", false
}
