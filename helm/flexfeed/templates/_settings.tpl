{{/* The programs' own settings, and variables. */}}

{{/* Settings that the chart sets itself, and by which values. The schema checks that the programs
know all other keys. */}}
{{- define "flexfeed.ownSettings" -}}
source:
  listen: "source.listenAddress is the address; source.service.port is the port for receivers"
  http: "see source.httpPort and source.httpLocal"
  data: "it is the folder /data, see source.persistence"
  database_url: "see database"
  console: "see console.enabled, database.mode, console.httpPort and console.httpLocal"
  console_public_url: "see console.publicUrl"
  console_trusted_proxy: "see console.trustedProxies"
  holder_name: "it is the pod's name"
  public_address: "see publicAddress"
  cert: "see source.tls.existingSecret"
  key: "see source.tls.existingSecret"
  next_pin: "see source.tls.nextPin"
  signing_key: "see source.signingKey.existingSecret"
  contact: "see source.contact"
  retention: "see source.retention"
  retention_age: "see source.retentionAge"
  multicast_ttl: "see source.multicastTtl"
  feed: "see source.channels"
  channel: "see source.channels"
  group: "see source.channels"
  private: "see source.channels"
  channel_spec: "see source.channels"
  log_format: "see log.format"
  log_level: "see log.level"
relay:
  listen: "it is port 2268, see source.service.relayPort"
  http: "see relay.httpPort and relay.httpLocal"
  udp_ports: "see relay.udpPorts"
  capture: "see relay.capture and relay.mode"
  native_interface: "see relay.nativeInterface"
  log_format: "see log.format"
  log_level: "see log.level"
console:
  listen: "see console.httpPort and console.service.port"
  database_url: "see database"
  database_url_file: "see database"
  public_url: "see console.publicUrl"
  trusted_proxy: "see console.trustedProxies"
  log_format: "see log.format"
  log_level: "see log.level"
receiver:
  link: "see receiver.link"
  link_file: "see receiver.existingSecret"
  data: "it is the folder /data, see receiver.persistence"
  name: "see receiver.name"
  http: "see receiver.httpPort and receiver.httpLocal"
  log_format: "see log.format"
  log_level: "see log.level"
{{- end -}}

{{- define "flexfeed.wrongSettings" -}}
{{- $values := .Values }}
{{- range $part, $own := include "flexfeed.ownSettings" . | fromYaml }}
{{- range $key, $_ := (index $values $part).settings }}
{{- with index $own $key }}
{{ $part }}.settings.{{ $key }}: the chart sets this itself: {{ . }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Settings as variables: (list "FLEXFEED_RELAY_" map). Lists are comma-separated. */}}
{{- define "flexfeed.variables" -}}
{{- $prefix := index . 0 -}}
{{- range $key, $value := index . 1 }}
- name: {{ $prefix }}{{ $key | upper }}
  value: {{ include "flexfeed.text" $value | quote }}
{{- end }}
{{- end -}}

{{/* A value as text: numbers as written (large ones without an exponent), lists
comma-separated. */}}
{{- define "flexfeed.text" -}}
{{- if kindIs "slice" . -}}
{{- $parts := list -}}
{{- range . }}{{ $parts = append $parts (include "flexfeed.text" .) }}{{ end -}}
{{- join "," $parts -}}
{{- else if kindIs "float64" . -}}
{{- if eq . (floor .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- else -}}
{{- . | toString -}}
{{- end -}}
{{- end -}}

{{/* Variables of a container: (list "source" "- name: …" of the chart, additional ones). Each name
may occur only once: of two, one would silently override the other. */}}
{{- define "flexfeed.env" -}}
{{- $part := index . 0 -}}
{{- $names := dict -}}
{{- range index . 1 | fromYamlArray }}{{ $_ := set $names .name true }}{{ end -}}
{{- range index . 2 -}}
{{- if hasKey $names .name -}}
{{- fail (printf "\n\n%s.extraEnv: %s exists already: the chart sets it, or %s.settings or an earlier entry does" $part .name $part) -}}
{{- end -}}
{{- $_ := set $names .name true -}}
{{- end -}}
{{ trim (index . 1) }}
{{- with index . 2 }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* HTTP address of a program: (list "0.0.0.0" port, whether only for its own node). */}}
{{- define "flexfeed.listen" -}}
{{ ternary "127.0.0.1" (index . 0) (index . 2) }}:{{ int (index . 1) }}
{{- end -}}

{{/* HTTP probe: (list "/readyz" "http" failureThreshold periodSeconds), and whether the program
answers only its own node. */}}
{{- define "flexfeed.probe" -}}
httpGet:
  path: {{ index . 0 }}
  port: {{ index . 1 }}
  {{- if gt (len .) 4 }}{{ if index . 4 }}
  host: 127.0.0.1
  {{- end }}{{ end }}
periodSeconds: {{ index . 3 }}
timeoutSeconds: 3
failureThreshold: {{ index . 2 }}
{{- end -}}
