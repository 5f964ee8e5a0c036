{{/* Common parts of all pods. */}}

{{/* Beginning of a pod's spec: (list $ .Values.source). No variables for Services: FLEXFEED_…_PORT
and similar ones would look like settings. */}}
{{- define "flexfeed.pod" -}}
{{- $top := index . 0 -}}
{{- $part := index . 1 -}}
serviceAccountName: {{ include "flexfeed.serviceAccountName" $top }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $top.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* User of the programs: unprivileged, as in the images. */}}
{{- define "flexfeed.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
# Not the files inside: keys stay readable by their owner only.
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "flexfeed.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Annotations and labels of a part's pods: (list $ "source" .Values.source (dict of more
annotations)) */}}
{{- define "flexfeed.podMeta" -}}
{{- $part := index . 2 -}}
{{- $annotations := merge (dict) (index . 3) (default dict $part.podAnnotations) -}}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
labels:
  {{- /* Without the chart's version, which alone must not replace pods. */}}
  {{- include "flexfeed.selector" (list (index . 0) (index . 1)) | nindent 2 }}
  {{- with merge (dict) (default dict $part.podLabels) (default dict (index . 0).Values.commonLabels) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "flexfeed.volumeClaim" -}}
- metadata:
    name: data
  spec:
    accessModes: [ReadWriteOnce]
    {{- if .storageClass }}
    storageClassName: {{ .storageClass }}
    {{- end }}
    resources:
      requests:
        storage: {{ .size }}
{{- end -}}


{{/* Whether the receiver has a Service. */}}
{{- define "flexfeed.receiverReached" -}}
{{- $receiver := .Values.receiver -}}
{{- if and $receiver.enabled $receiver.service.enabled (not $receiver.httpLocal) }}yes{{ end -}}
{{- end -}}
