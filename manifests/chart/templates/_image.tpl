{{/*
The reference of one of Berth's images. Its arguments are a list: the root, the program, its digest.
*/}}
{{- define "berth.image" -}}
{{- $root := index . 0 -}}
{{- $digest := index . 2 -}}
{{ $root.Values.image.registry }}/berth-{{ index . 1 }}
{{- if $digest }}@{{ $digest }}{{ else }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}{{ end -}}
{{- end -}}
