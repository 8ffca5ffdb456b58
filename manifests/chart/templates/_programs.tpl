{{/*
The programs that are on, and what differs: whose leader has a lease, at which port those that are not in their node's
network serve, and whose requests are one flow. The agents' have a level of their own, the console's are its users'.
*/}}
{{- define "berth.programs" -}}
scheduler: {port: 10259, leads: true, flow: true}
controller: {port: 10266, leads: true, flow: true}
agent: {}
{{- with .Values }}
{{- if .console.enabled }}
console: {port: 10268}
{{- end }}
{{- if .failover.enabled }}
failover: {port: 10269, leads: true, flow: true}
{{- end }}
{{- if .speaker.enabled }}
speaker: {flow: true}
{{- end }}
{{- end }}
{{- end -}}
