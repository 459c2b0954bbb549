package fieldmap

import (
	"slices"
	"strings"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/hostproc"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
)

// maxResourceAttributes is the default limit. Pyroscope refuses a series with more than 30 labels, and every resource and
// sample attribute is a label. So the limit leaves room for sample attributes.
const maxResourceAttributes = 25

// These keys of derived resource attributes are from the semantic conventions
// (https://opentelemetry.io/docs/specs/semconv/resource/).
const (
	keyServiceName      = "service.name"
	keyServiceNamespace = "service.namespace"
	keyServiceVersion   = "service.version"
	keyServiceInstance  = "service.instance.id"
	keyNamespace        = "k8s.namespace.name"
	keyPod              = "k8s.pod.name"
	keyK8sContainer     = "k8s.container.name"
	keyNode             = "k8s.node.name"
	keyContainerName    = "container.name"
	keyContainerID      = "container.id"
	keyImageName        = "container.image.name"
	keyImageTags        = "container.image.tags"
	keyImageID          = "container.image.id"
	keyImageDigests     = "container.image.repo_digests"
	keyRuntimeName      = "container.runtime.name"
	keyHostName         = "host.name"
	keyHostID           = "host.id"
	keyHostArch         = "host.arch"
	keyOSType           = "os.type"
	keyExecutable       = "process.executable.name"
	keyExecutablePath   = "process.executable.path"
	keyEnvironment      = "deployment.environment.name"
	podLabelPrefix      = "k8s.pod.label."
)

var resourceKeys = []string{
	keyServiceName, keyServiceNamespace, keyServiceVersion, keyServiceInstance,
	keyNamespace, keyPod, keyK8sContainer, keyNode,
	"k8s.deployment.name", "k8s.statefulset.name", "k8s.daemonset.name",
	"k8s.replicaset.name", "k8s.job.name", "k8s.cronjob.name",
	keyContainerName, keyContainerID, keyImageName, keyImageTags, keyImageID, keyImageDigests,
	keyRuntimeName, keyHostName, keyHostID, keyHostArch, keyOSType,
	keyExecutable, keyExecutablePath, keyEnvironment,
}

// ownerKeys maps the kinds of pod owners to their attributes. Other owners, for example a static pod's node, have no attribute
// and name no service.
var ownerKeys = map[string]string{
	"deployment":  "k8s.deployment.name",
	"replicaset":  "k8s.replicaset.name",
	"statefulset": "k8s.statefulset.name",
	"daemonset":   "k8s.daemonset.name",
	"cronjob":     "k8s.cronjob.name",
	"job":         "k8s.job.name",
}

// place says where an attribute goes.
type place uint8

const (
	nowhere place = iota
	onResource
	onSample
	onBoth
)

// list collects attributes in order of importance. Every key occurs once, and no value is empty.
type list struct {
	plan     *Plan
	resource []profile.Attribute
	sample   []profile.Attribute // attributes that the settings move to the sample
	service  string              // the service of a row outside containers, or empty
	cut      int                 // resource attributes over the limit
}

func (l *list) text(key, value string) {
	if v, ok := textValue(value); ok {
		l.add(key, v)
	}
}

// add appends an attribute. A value for this key in the settings replaces v.
func (l *list) add(key string, v profile.Value) {
	if key == "" {
		return
	}
	if set, ok := l.plan.fixed[key]; ok {
		v = set
	}
	where := l.plan.placed(key, onResource)
	a := profile.Attribute{Key: l.plan.name(key), Value: v}
	if (where == onSample || where == onBoth) && !hasKey(l.sample, a.Key) {
		l.sample = append(l.sample, a)
	}
	if where != onResource && where != onBoth || hasKey(l.resource, a.Key) {
		return
	}
	if len(l.resource) >= l.plan.maxResource {
		l.cut++
		return
	}
	l.resource = append(l.resource, a)
}

func hasKey(attrs []profile.Attribute, key string) bool {
	return slices.ContainsFunc(attrs, func(a profile.Attribute) bool { return a.Key == key })
}

// name returns the key under which an attribute is exported.
func (p *Plan) name(key string) string {
	if name, ok := p.names[key]; ok {
		return name
	}
	return key
}

// placed returns the attribute's place from the settings, or def if they set none.
func (p *Plan) placed(key string, def place) place {
	if pl, ok := p.placement[key]; ok {
		return pl
	}
	return def
}

// derive creates the attributes of the row's resource, the most important first. own reports that the row belongs to a service
// outside containers.
func (p *Plan) derive(d datasource.Data, own bool) *list {
	l := &list{plan: p}
	id := func(i int) string { return p.identity[i].text(d) }
	namespace, pod := id(idNamespace), id(idPod)
	k8sContainer, runtimeContainer := id(idContainer), id(idRuntimeContainer)
	containerID := id(idContainerID)
	ownerKey, owner := ownerKeys[strings.ToLower(id(idOwnerKind))], id(idOwnerName)
	if ownerKey == "" {
		owner = ""
	}
	labels := parseLabels(id(idLabels))
	image := parseImage(id(idImageName))
	node := id(idNode)

	host := p.onHost(d)
	said, process := noContext, hostproc.Service{}
	if own {
		said = p.context(d, host)
	}
	if own && host && p.hosts.services != nil {
		process = p.hostService(d)
		l.service = firstOf(said.Service, process.Name)
	}
	service, version := firstOf(l.service, p.exporter.HostServiceName, "host"), said.Version
	if !host {
		// The last two are for rows with almost no metadata, because every resource gets a service.name.
		service = firstOf(said.Service, owner, pod, k8sContainer, runtimeContainer, containerID[:min(len(containerID), 12)], namespace)
		version = firstOf(said.Version, image.version())
		if p.exporter.ServiceFromLabels {
			service = firstOf(labels["app.kubernetes.io/instance"], labels["app.kubernetes.io/name"], service)
			version = firstOf(labels["app.kubernetes.io/version"], version)
		}
	}
	l.text(keyServiceName, firstOf(p.exporter.ServiceName, service))
	l.text(keyServiceNamespace, firstOf(said.Namespace, namespace))
	l.text(keyNamespace, namespace)
	l.text(keyPod, pod)
	l.text(keyK8sContainer, k8sContainer)
	l.text(keyContainerName, runtimeContainer)
	l.text(keyContainerID, containerID)
	l.text(keyServiceInstance, said.Instance)
	if namespace != "" && pod != "" && k8sContainer != "" {
		l.text(keyServiceInstance, namespace+"."+pod+"."+k8sContainer) // ignored if it is already set
	}
	l.text(keyEnvironment, said.Environment)
	l.text(ownerKey, owner)
	l.text(keyHostName, firstOf(node, p.host.NodeName, p.host.Name))
	if p.exporter.HostID {
		l.text(keyHostID, firstOf(p.host.ID, node, p.host.NodeName, p.host.Name))
	}
	l.text(keyNode, firstOf(node, p.host.NodeName))
	l.text(keyExecutable, process.Executable)
	l.text(keyExecutablePath, process.Path)
	for _, key := range p.fixedKeys {
		l.add(key, p.fixed[key])
	}
	for _, name := range p.podLabels {
		l.text(podLabelPrefix+name, labels[name])
	}
	l.text(keyImageName, image.name)
	if image.tag != "" {
		l.add(keyImageTags, profile.Texts(clip(image.tag)))
	}
	l.text(keyServiceVersion, version)
	if name := id(idRuntimeName); name != "unknown" {
		l.text(keyRuntimeName, name)
	}
	for i := range p.resourceAttrs {
		a := &p.resourceAttrs[i]
		if v, ok := a.read.value(d); ok {
			l.add(a.key, v)
		}
	}
	l.text(keyHostArch, p.host.Arch)
	l.text(keyOSType, p.host.OS)
	if p.exporter.ImageDigest {
		if ref := repoDigest(image, id(idImageDigest)); ref != "" {
			l.add(keyImageDigests, profile.Texts(clip(ref)))
		}
	}
	l.text(keyImageID, image.id)
	return l
}

// firstOf returns the first text that is not blank, cleaned as textValue does it.
func firstOf(list ...string) string {
	for _, s := range list {
		if strings.TrimSpace(s) != "" {
			return s
		}
	}
	return ""
}

// parseLabels parses the labels of a pod: "key=value", separated by commas. Neither keys nor values can contain a comma.
func parseLabels(s string) map[string]string {
	labels := map[string]string{}
	for pair := range strings.SplitSeq(s, ",") {
		if key, value, ok := strings.Cut(pair, "="); ok {
			labels[key] = value
		}
	}
	return labels
}

// imageRef holds the parts of a container image's name. If the runtime reports the image's ID and no name, only id is set.
type imageRef struct {
	name, tag, digest, id string
}

// parseImage splits an image reference. A colon before the last slash belongs to a registry's port.
func parseImage(ref string) imageRef {
	if isImageID(ref) {
		return imageRef{id: ref}
	}
	var image imageRef
	image.name, image.digest, _ = strings.Cut(ref, "@")
	if i := strings.LastIndexByte(image.name, ':'); i > strings.LastIndexByte(image.name, '/') {
		image.name, image.tag = image.name[:i], image.name[i+1:]
	}
	return image
}

// isImageID reports whether ref is a full or short (12 digits) image ID and not a name.
func isImageID(ref string) bool {
	hex, prefixed := strings.CutPrefix(ref, "sha256:")
	if !prefixed && len(hex) != 64 && len(hex) != 12 || hex == "" {
		return false
	}
	return strings.Trim(hex, "0123456789abcdef") == ""
}

// version returns the service's version, taken from its image.
func (i imageRef) version() string {
	if i.tag != "" && i.digest != "" {
		return i.tag + "@" + i.digest
	}
	return firstOf(i.tag, i.digest)
}

// repoDigest returns the image as name@digest.
func repoDigest(image imageRef, digest string) string {
	if strings.Contains(digest, "@") {
		return digest
	}
	digest = firstOf(digest, image.digest)
	if digest == "" || image.name == "" {
		return ""
	}
	return image.name + "@" + digest
}
